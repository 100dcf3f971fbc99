// `tandem bench`: load on an OpenAI-compatible server and what it did with it. The load generator
// is src/loadgen; here are its options, the live display and the files.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "cli/bench_flags.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "config/options.h"
#include "loadgen/client/driver.h"
#include "loadgen/report.h"

namespace tandem::cli {
namespace {

using net::asio::awaitable;

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Status write_file(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return make_error(500, "cannot_write", "cannot write " + path);
  return {};
}

// Everything of one run, on one reactor.
class Bench {
 public:
  Bench(const BenchFlags& flags, loadgen::Target target, std::vector<loadgen::Objective> objectives)
      : flags_(flags), target_(std::move(target)), summary_(std::move(objectives)) {}

  Result<int> run(Signals& signals, const std::vector<double>& percentiles);

 private:
  Status find_out();
  Status warm_up();
  Status measure(Chosen chosen, const loadgen::Schedule& schedule);
  awaitable<void> show(const loadgen::Driver& driver, int64_t requests);
  void clear_line() const {
    if (live_) std::fputs("\r\x1b[K", stderr);
  }
  void interrupt() {
    if (driver_ == nullptr) std::_Exit(130);  // nothing has been measured yet
    interrupted_ = true;
    driver_->stop();
  }

  const BenchFlags& flags_;
  loadgen::Target target_;
  loadgen::Summary summary_;
  net::Reactor reactor_;
  net::HttpClient client_{reactor_, std::chrono::seconds(60), 8192};
  loadgen::Driver* driver_ = nullptr;
  bool interrupted_ = false;
  bool shown_ = true;
  bool live_ = ::isatty(STDERR_FILENO) == 1;
  std::ofstream requests_file_;
};

Status Bench::find_out() {
  if (flags_.no_probe && !target_.body.model.empty()) return {};
  Result<loadgen::Probe> found = make_error(499, "interrupted", "interrupted before the run began");
  const auto ask = [](loadgen::Probe& out, Result<loadgen::Probe>& result, net::HttpClient& client,
                      loadgen::Target target) -> awaitable<void> {
    result = co_await loadgen::probe(client, std::move(target));
    if (result) out = *result;
  };
  loadgen::Probe probe;
  net::run_until_done(reactor_, ask(probe, found, client_, target_));
  if (!found) return tl::unexpected(found.error());
  target_.body.model = probe.model;
  if (!flags_.no_probe) target_.body.words = probe.words;
  if (!probe.counts_tokens && !flags_.quiet)
    std::fputs("the server gives no usage: pieces stand for tokens\n", stderr);
  return {};
}

Status Bench::warm_up() {
  if (flags_.warmup == 0) return {};
  TANDEM_TRY(chosen, choose_dataset(flags_, static_cast<uint64_t>(flags_.seed) + 7919, true));
  loadgen::Schedule schedule;
  schedule.requests = flags_.warmup;
  schedule.concurrency = std::min(flags_.warmup, std::max(flags_.concurrency, 1));
  schedule.think_scale = 0;
  loadgen::Driver driver(reactor_, client_, target_, schedule, *chosen.dataset, {});
  driver_ = &driver;
  net::run_until_done(reactor_, driver.run());
  driver_ = nullptr;
  return {};
}

awaitable<void> Bench::show(const loadgen::Driver& driver, int64_t requests) {
  const Duration between =
      live_ ? Duration(std::chrono::milliseconds(500)) : Duration(std::chrono::seconds(10));
  while (true) {
    co_await reactor_.sleep(between);
    if (!shown_) co_return;
    const std::string line = loadgen::progress_line(summary_, driver.now(), requests);
    if (live_) {
      std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
    } else {
      std::fprintf(stderr, "%s\n", line.c_str());
    }
    std::fflush(stderr);
  }
}

Status Bench::measure(Chosen chosen, const loadgen::Schedule& schedule) {
  if (!flags_.save_requests.empty()) {
    requests_file_.open(flags_.save_requests, std::ios::binary);
    if (!requests_file_)
      return make_error(500, "cannot_write", "cannot write " + flags_.save_requests);
  }
  loadgen::Driver::Listener listener;
  listener.sent = [this](double at) { summary_.sent(at); };
  listener.piece = [this](double at) { summary_.piece(at); };
  listener.explain = [this](loadgen::ErrorKind kind, std::string_view words) {
    summary_.explain(kind, words);
  };
  listener.ended = [this](const loadgen::RequestRecord& record, const std::vector<double>& gaps) {
    summary_.ended(record, gaps);
    if (requests_file_.is_open()) requests_file_ << loadgen::record_line(record) << '\n';
  };
  loadgen::Driver driver(reactor_, client_, target_, schedule, *chosen.dataset, listener);
  driver_ = &driver;
  if (!flags_.quiet) reactor_.spawn(show(driver, schedule.requests));
  net::run_until_done(reactor_, driver.run());
  driver_ = nullptr;
  shown_ = false;
  if (!flags_.quiet) clear_line();
  if (requests_file_.is_open()) {
    requests_file_.close();
    if (!requests_file_)
      return make_error(500, "cannot_write", "cannot write " + flags_.save_requests);
  }
  return {};
}

Result<int> Bench::run(Signals& signals, const std::vector<double>& percentiles) {
  TANDEM_TRY(chosen, choose_dataset(flags_, static_cast<uint64_t>(flags_.seed),
                                    flags_.requests > 0 || flags_.duration > Duration::zero()));
  TANDEM_TRY(load, make_schedule(flags_, chosen.dataset->has_times()));
  signals.on_signal([this] { reactor_.post([this] { interrupt(); }); });
  loadgen::RunFacts facts;
  facts.url = flags_.url;
  facts.api = target_.path;
  facts.dataset = chosen.words;
  facts.load = load.second;
  facts.date = date_now();
  facts.open_loop = load.first.arrivals.has_value() || load.first.trace_times;
  facts.percentiles = percentiles;
  TANDEM_CHECK(find_out());
  facts.model = target_.body.model;
  TANDEM_CHECK(warm_up());
  if (!interrupted_) TANDEM_CHECK(measure(std::move(chosen), load.first));
  facts.interrupted = interrupted_;
  std::fputs(loadgen::text_report(summary_, facts).c_str(), stdout);
  std::fflush(stdout);
  TANDEM_CHECK(write_file(flags_.json, loadgen::json_report(summary_, facts).dump() + '\n'));
  TANDEM_CHECK(write_file(flags_.html, loadgen::html_report(summary_, facts)));
  return summary_.completed() > 0 ? 0 : 1;
}

}  // namespace

int run_bench(const Arguments& arguments) {
  config::Options options(
      "bench",
      "Puts load on an OpenAI-compatible server and reports what it did with it: time to first "
      "token, between tokens and of whole answers, throughput, and goodput under objectives. " +
          std::string(loadgen::definitions()));
  BenchFlags flags;
  flags.declare(options);
  const auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  const auto percentiles = percentiles_of(flags);
  if (!percentiles) return report(percentiles.error());
  auto objectives = objectives_of(flags);
  if (!objectives) return report(objectives.error());
  auto target = make_target(flags);
  if (!target) return report(target.error());
  raise_descriptor_limit();
  Signals signals;
  Bench bench(flags, std::move(*target), std::move(*objectives));
  const auto result = bench.run(signals, *percentiles);
  return result ? *result : report(result.error());
}

}  // namespace tandem::cli
