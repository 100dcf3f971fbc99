#include "router/fleet_file.h"

#include <set>
#include <utility>

#include "base/json_value.h"

namespace tandem::router {

namespace {

tl::unexpected<Error> bad_file(const std::string& why, std::string pointer) {
  return make_error(400, "bad_fleet_file", "the list of workers " + why, std::move(pointer));
}

Status read_field(ListedWorker& worker, const std::string& key, const JsonValue& value,
                  const std::string& of) {
  std::string pointer = of;
  pointer.append("/").append(key);
  if (key == "ready") {
    if (!value.is_bool()) return bad_file("has a 'ready' that is not true or false", pointer);
    worker.ready = value.as_bool();
    return {};
  }
  if (!value.is_string() && !value.is_number())
    return bad_file("has a '" + key + "' that is neither text nor a number", pointer);
  return set_worker_field(worker.address, key,
                          value.is_string() ? value.as_string() : value.dump());
}

}  // namespace

Result<std::vector<ListedWorker>> parse_fleet(std::string_view text, const std::string& connector,
                                              const std::string& model) {
  TANDEM_TRY(json, parse_json(text));
  const JsonValue* const list = json.find("workers");
  if (list == nullptr || !list->is_array()) return bad_file("has no array 'workers'", "/workers");
  std::vector<ListedWorker> listed;
  std::set<std::string> urls;
  for (size_t i = 0; i < list->items().size(); ++i) {
    const JsonValue& item = list->items()[i];
    const std::string pointer = "/workers/" + std::to_string(i);
    if (!item.is_object()) return bad_file("holds something that is no object", pointer);
    ListedWorker& worker = listed.emplace_back();
    worker.address.connector = connector;
    worker.address.model = model;
    for (const auto& [key, value] : item.members())
      TANDEM_CHECK(read_field(worker, key, value, pointer));
    if (worker.address.url.empty()) return bad_file("has a worker without a 'url'", pointer);
    if (!urls.insert(worker.address.url).second)
      return bad_file("names " + worker.address.url + " twice", pointer);
  }
  return listed;
}

std::vector<FleetChange> FleetPlan::follow(const std::vector<ListedWorker>& listed) {
  using Kind = FleetChange::Kind;
  std::vector<FleetChange> changes;
  std::map<std::string, const ListedWorker*> wanted;
  for (const ListedWorker& worker : listed) wanted[worker.address.url] = &worker;
  for (auto at = known_.begin(); at != known_.end();) {
    const auto found = wanted.find(at->first);
    if (found != wanted.end() && found->second->address == at->second.address) {
      ++at;
      continue;
    }
    changes.push_back({Kind::kRemove, at->second});
    at = known_.erase(at);
  }
  for (const ListedWorker& worker : listed) {
    const auto [known, fresh] = known_.try_emplace(worker.address.url, worker);
    if (fresh) changes.push_back({Kind::kAdd, worker});
    if (fresh ? !worker.ready : worker.ready != known->second.ready)
      changes.push_back({worker.ready ? Kind::kUndrain : Kind::kDrain, worker});
    known->second.ready = worker.ready;
  }
  return changes;
}

}  // namespace tandem::router
