// Golden traces: each line of traces/*.trace is an event; the decisions it leads to are compared
// with the .golden file beside it. TANDEM_UPDATE_GOLDEN=1 rewrites those.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "protocol/content_id.h"
#include "router/policy/policy.h"

namespace tandem::router {
namespace {

class TraceRunner {
 public:
  std::string run(std::istream& trace) {
    std::string line;
    while (std::getline(trace, line)) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      std::string verb;
      std::string name;
      words >> verb >> name;
      std::map<std::string, std::string> fields;
      std::string role;
      for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        if (equals == std::string::npos) {
          role = word;
        } else {
          fields[word.substr(0, equals)] = word.substr(equals + 1);
        }
      }
      if (verb == "worker") add_worker(name, role, fields);
      if (verb == "request") place(name, fields);
      if (verb == "finish") finish(name, fields);
      if (verb == "down") workers_[ids_.at(name)].available = false;
      if (verb == "up") workers_[ids_.at(name)].available = true;
      if (verb == "epoch") held_.erase(ids_.at(name));
    }
    return out_.str();
  }

 private:
  struct Running {
    Placement placement;
    std::vector<protocol::ContentId> ids;
    int32_t tokens;
  };

  void add_worker(const std::string& name, const std::string& role,
                  std::map<std::string, std::string>& fields) {
    WorkerSnapshot made;
    made.reusable_tokens = 1e9;  // its cache is full, where the trace does not say otherwise
    made.id = static_cast<WorkerId>(workers_.size());
    made.key = stable_hash(name);
    made.role = role == "prefill"  ? WorkerRole::kPrefill
                : role == "decode" ? WorkerRole::kDecode
                                   : WorkerRole::kUnified;
    if (fields.contains("rate")) made.prefill_rate = std::stod(fields["rate"]);
    if (fields.contains("reusable")) made.reusable_tokens = std::stod(fields["reusable"]);
    if (fields.contains("capacity")) made.capacity_tokens = std::stoll(fields["capacity"]);
    ids_[name] = made.id;
    names_.push_back(name);
    workers_.push_back(made);
  }

  // "sys:8+alice:3": eight blocks of one text, then three of another.
  static std::vector<protocol::ContentId> blocks(const std::string& text,
                                                 protocol::ContentId parent) {
    std::vector<protocol::ContentId> ids;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, '+');) {
      const size_t colon = part.find(':');
      std::vector<int32_t> tokens(
          16, static_cast<int32_t>(stable_hash(part.substr(0, colon)) & 0xffff));
      for (int i = std::stoi(part.substr(colon + 1)); i > 0; --i)
        ids.push_back(parent = protocol::next_content_id(parent, tokens));
    }
    return ids;
  }

  void place(const std::string& name, std::map<std::string, std::string>& fields) {
    Running running;
    running.ids = blocks(fields["blocks"], protocol::root_content_id("m", 16, ""));
    running.tokens = static_cast<int32_t>(running.ids.size()) * 16 + std::stoi(fields["tail"]);
    PlacementRequest request;
    request.prompt_tokens = running.tokens;
    request.affinity = stable_hash(fields["session"]);
    for (auto& worker : workers_) worker.prefix_blocks = held(running.ids, worker.id);
    running.placement = choose_placement(workers_, request, {});
    const Placement& placement = running.placement;
    out_ << name << ": ";
    if (!placement.found()) {
      out_ << "nobody\n";
      return;
    }
    if (placement.prefill != kNoWorker) out_ << names_[placement.prefill] << " -> ";
    out_ << names_[placement.answer] << (placement.local_prefill ? " (local prefill)" : "") << ", "
         << running.tokens << " tokens, " << placement.expected_cached << " cached\n";
    const WorkerId computing =
        placement.prefill == kNoWorker ? placement.answer : placement.prefill;
    workers_[computing].queued_tokens += running.tokens - placement.expected_cached;
    ++workers_[placement.answer].running;
    running_[name] = std::move(running);
  }

  void finish(const std::string& name, std::map<std::string, std::string>& fields) {
    Running& running = running_.at(name);
    const Placement& placement = running.placement;
    const WorkerId computing =
        placement.prefill == kNoWorker ? placement.answer : placement.prefill;
    workers_[computing].queued_tokens -= running.tokens - placement.expected_cached;
    --workers_[placement.answer].running;
    hold(running.ids, computing);
    const auto output = blocks(fields["output"], running.ids.back());
    running.ids.insert(running.ids.end(), output.begin(), output.end());
    hold(running.ids, placement.answer);
    running_.erase(name);
  }

  void hold(const std::vector<protocol::ContentId>& ids, WorkerId worker) {
    for (const protocol::ContentId& id : ids) held_[worker].insert(id.hex());
  }

  int32_t held(const std::vector<protocol::ContentId>& ids, WorkerId worker) {
    int32_t count = 0;
    for (const protocol::ContentId& id : ids) {
      if (!held_[worker].contains(id.hex())) break;
      ++count;
    }
    return count;
  }

  std::vector<WorkerSnapshot> workers_;
  std::vector<std::string> names_;
  std::map<std::string, WorkerId> ids_;
  std::map<std::string, Running> running_;
  std::map<WorkerId, std::set<std::string>> held_;  // blocks by their names
  std::ostringstream out_;
};

TEST(PolicyTraces, DecideAsTheGoldenFilesSay) {
  const std::filesystem::path folder =
      std::filesystem::path(TANDEM_SOURCE_DIR) / "src/router/policy/traces";
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".trace") continue;
    ++seen;
    std::ifstream trace(entry.path());
    const std::string decided = TraceRunner().run(trace);
    auto golden = entry.path();
    golden.replace_extension(".golden");
    if (std::getenv("TANDEM_UPDATE_GOLDEN") != nullptr) std::ofstream(golden) << decided;
    std::ostringstream expected;
    expected << std::ifstream(golden).rdbuf();
    EXPECT_EQ(decided, expected.str()) << entry.path().filename();
  }
  EXPECT_GE(seen, 6);
}

}  // namespace
}  // namespace tandem::router
