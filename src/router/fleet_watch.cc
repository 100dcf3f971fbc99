#include "router/fleet_watch.h"

#include <fstream>
#include <map>
#include <utility>

#include "observe/log.h"
#include "router/fleet_file.h"

namespace tandem::router {

namespace {

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kFleetFileBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && file.gcount() == 0)
    return make_error(400, "bad_fleet_file", "cannot read '" + path + "'");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kFleetFileBytes)
    return make_error(400, "bad_fleet_file", "'" + path + "' is larger than 4 MiB");
  return text;
}

class FleetWatch {
 public:
  explicit FleetWatch(RouterCore& core)
      : core_(core),
        errors_(core.metrics_store.counter("tandem_router_fleet_file_errors_total",
                                           "Readings of --workers-file that could not be used.")),
        listed_(core.metrics_store.gauge("tandem_router_fleet_file_workers",
                                         "Workers that come from --workers-file.")) {}

  // Errors: the first; everything else is done all the same.
  Status take(const Result<std::string>& text) {
    if (!text) return tl::unexpected(text.error());
    if (whole_ && *text == text_) return {};
    TANDEM_TRY(listed, parse_fleet(*text, core_.options.listed_worker));
    text_ = *text;
    Status first;
    for (const FleetChange& change : plan_.follow(listed)) {
      if (Status done = apply(change); !done && first) first = std::move(done);
    }
    whole_ = first.has_value();
    listed_.set(static_cast<double>(plan_.size()));
    return first;
  }

  // Said once, until it is something else.
  void tell(const Status& done) {
    if (!done) errors_.add();
    const std::string problem = done ? std::string() : done.error().message;
    if (problem == problem_) return;
    problem_ = problem;
    if (!problem.empty()) observe::log_error("--workers-file: {}", problem);
  }

 private:
  Status apply(const FleetChange& change) {
    const std::string& url = change.worker.address.url;
    if (change.kind == FleetChange::Kind::kAdd) {
      Result<WorkerId> id = core_.registry.add(change.worker.address);
      if (!id) {
        plan_.failed(url);
        return tl::unexpected(std::move(id).error());
      }
      ids_[url] = *id;
      return {};
    }
    const auto known = ids_.find(url);
    if (known == ids_.end()) return {};
    if (change.kind == FleetChange::Kind::kRemove) {
      core_.registry.remove(known->second);
      ids_.erase(known);
    } else {
      core_.registry.drain(known->second, change.kind == FleetChange::Kind::kDrain);
    }
    return {};
  }

  RouterCore& core_;
  observe::Counter errors_;
  observe::Gauge listed_;
  FleetPlan plan_;
  std::map<std::string, WorkerId> ids_;
  std::string text_;
  bool whole_ = false;  // all of text_ was done
  std::string problem_;
};

net::asio::awaitable<void> follow(std::shared_ptr<RouterCore> core,
                                  std::shared_ptr<FleetWatch> watch) {
  while (true) {
    co_await core->reactor.sleep(core->options.fleet_interval);
    if (core->closed) co_return;
    const Result<std::string> text = co_await net::run_on<std::string>(
        core->pool, core->reactor, [path = core->options.fleet_file] { return read_file(path); },
        net::WorkPool::Weight::kLight, std::chrono::seconds(10));
    if (core->closed) co_return;
    watch->tell(watch->take(text));
  }
}

}  // namespace

Status follow_fleet_file(const std::shared_ptr<RouterCore>& core) {
  const auto watch = std::make_shared<FleetWatch>(*core);
  TANDEM_CHECK(watch->take(read_file(core->options.fleet_file)));
  core->reactor.spawn(follow(core, watch));
  return {};
}

}  // namespace tandem::router
