// The fleet as a file: --workers-file. A list that some program keeps (a ConfigMap, a script over
// EndpointSlices, an operator's editor) and that the router follows while it runs.
//
//   {"workers": [{"url": "http://10.0.0.1:8000", "role": "prefill", "connector": "vllm-nixl"},
//                {"url": "http://10.0.0.2:8000", "role": "decode", "ready": false}]}
//
// A worker is written as in POST /router/workers. `ready`: false drains it. What it leaves out
// comes from the command line's --connector and --model.
//
// FleetPlan is pure: a list and what was made of the last one in, changes out.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "router/worker_registry.h"

namespace tandem::router {

struct ListedWorker {
  WorkerAddress address;
  bool ready = true;
  bool operator==(const ListedWorker&) const = default;
};

inline constexpr size_t kFleetFileBytes = 4UL << 20;

// One worker, written as an object whose values are text or numbers. `at`: its place, as a JSON
// pointer. Errors: 400 "bad_worker" with the field's place.
Result<ListedWorker> read_worker(const JsonValue& json, const WorkerAddress& defaults,
                                 const std::string& at);

// Errors: 400 "bad_fleet_file" with the place, and those of read_worker().
Result<std::vector<ListedWorker>> parse_fleet(std::string_view text, const WorkerAddress& defaults);

struct FleetChange {
  enum class Kind : uint8_t { kAdd, kRemove, kDrain, kUndrain };
  Kind kind;
  ListedWorker worker;
  bool operator==(const FleetChange&) const = default;
};

class FleetPlan {
 public:
  // What must happen so that the fleet is as the list says. Workers are known by their URLs; one
  // whose other fields changed is removed and added again. Removals come first.
  std::vector<FleetChange> follow(const std::vector<ListedWorker>& listed);
  // An addition that failed is tried again with the next list.
  void failed(const std::string& url) { known_.erase(url); }
  size_t size() const { return known_.size(); }

 private:
  std::map<std::string, ListedWorker> known_;
};

}  // namespace tandem::router
