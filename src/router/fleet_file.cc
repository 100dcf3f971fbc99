#include "router/fleet_file.h"

#include <set>
#include <utility>

#include "base/json_pointer.h"

namespace tandem::router {

namespace {

tl::unexpected<Error> bad_file(const std::string& why, std::string pointer) {
  return make_error(400, "bad_fleet_file", "the list of workers " + why, std::move(pointer));
}

tl::unexpected<Error> bad_worker(const std::string& why, std::string pointer) {
  return make_error(400, "bad_worker", why, std::move(pointer));
}

Status read_field(ListedWorker& worker, const std::string& key, const JsonValue& value,
                  const std::string& pointer) {
  if (key == "ready") {
    if (!value.is_bool()) return bad_worker("'ready' is not true or false", pointer);
    worker.ready = value.as_bool();
    return {};
  }
  if (!value.is_string() && !value.is_number())
    return bad_worker("'" + key + "' is neither text nor a number", pointer);
  Status set = set_worker_field(worker.address, key, value.as_string());
  if (!set) set.error().pointer = pointer;
  return set;
}

}  // namespace

Result<ListedWorker> read_worker(const JsonValue& json, const WorkerAddress& defaults,
                                 const std::string& at) {
  if (!json.is_object()) return bad_worker("a worker is an object", at);
  ListedWorker worker{.address = defaults};
  for (const auto& [key, value] : json.members())
    TANDEM_CHECK(read_field(worker, key, value, pointer_to(at, key)));
  if (worker.address.url.empty()) return bad_worker("a worker has no 'url'", at + "/url");
  return worker;
}

Result<std::vector<ListedWorker>> parse_fleet(std::string_view text,
                                              const WorkerAddress& defaults) {
  TANDEM_TRY(json, parse_json(text));
  const JsonValue* const list = json.find("workers");
  if (list == nullptr || !list->is_array()) return bad_file("has no array 'workers'", "/workers");
  std::vector<ListedWorker> listed;
  std::set<std::string> urls;
  for (size_t i = 0; i < list->items().size(); ++i) {
    const std::string pointer = pointer_to("/workers", i);
    TANDEM_TRY(worker, read_worker(list->items()[i], defaults, pointer));
    if (!urls.insert(worker.address.url).second)
      return bad_file("names " + worker.address.url + " twice", pointer);
    listed.push_back(std::move(worker));
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
