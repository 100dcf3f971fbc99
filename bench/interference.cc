// How long prompts disturb running streams. Against a running server: `--streams` clients stream
// short-prompt answers one after the other, while prompts of `--prompt-tokens` random token ids
// arrive at random (Poisson, fixed seed) at
// `--rate` a second. Prints the inter-token latency of the streams and the time to first token of
// the prompts.
//
//   bench_interference URL --measure                       prefill capacity, in prompt tokens a
//   second bench_interference URL --rate 0.4 --seconds 60         one row of docs/performance.md
//
// ITL and TTFT are defined as in vLLM's benchmark client: time between two pieces of text of one
// stream; request sent to first piece.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "config/options.h"
#include "net/http_client.h"
#include "net/reactor.h"
#include "net/sse.h"

namespace tandem {
namespace {

using net::asio::awaitable;

struct Load {
  std::string url = "http://127.0.0.1:8000";
  int32_t streams = 4;
  int32_t stream_tokens = 300;
  int32_t prompt_tokens = 1024;
  std::string rate = "0.5";
  Duration seconds = std::chrono::seconds(60);
  bool measure = false;
};

struct Run {
  Load load;
  net::Url url;
  net::Reactor reactor;
  net::HttpClient client{reactor};
  std::mt19937_64 random{42};    // of the tokens
  std::mt19937_64 arrivals{43};  // of the arrival times: the same in every run
  TimePoint until{};
  int open = 0;
  int failed = 0;
  std::vector<double> itl_ms;
  std::vector<double> ttft_ms;
  int64_t stream_pieces = 0;
};

std::string body(Run& run, int32_t prompt_tokens, int32_t max_tokens) {
  std::string out = R"({"model":"default","stream":true,"temperature":0,"max_tokens":)" +
                    std::to_string(max_tokens) + R"(,"prompt":[)";
  for (int32_t i = 0; i < prompt_tokens; ++i)
    out += (i == 0 ? "" : ",") + std::to_string(100 + run.random() % 40000);
  return out + "]}";
}

// One streamed request; the times of its pieces of text in milliseconds since it was sent.
awaitable<Result<std::vector<double>>> stream_once(Run& run, std::string text) {
  net::ClientRequest request;
  request.method = "POST";
  request.host = run.url.host;
  request.port = run.url.port;
  request.target = run.url.base + "/v1/completions";
  request.headers = {{"Content-Type", "application/json"}};
  request.body = std::move(text);
  const TimePoint sent = std::chrono::steady_clock::now();
  auto call = run.client.call(std::move(request));
  auto head = co_await call->head();
  if (!head) co_return tl::unexpected(head.error());
  if (head->status != 200)
    co_return make_error(head->status, "failed", "status " + std::to_string(head->status));
  std::vector<double> times;
  net::SseFramer framer;
  while (true) {
    auto bytes = co_await call->read_some();
    if (!bytes) co_return tl::unexpected(bytes.error());
    if (bytes->empty()) break;
    const double now = 1e3 * to_seconds(std::chrono::steady_clock::now() - sent);
    if (!framer.feed(*bytes)) break;
    while (auto frame = framer.next()) {
      if (!frame->has_data || frame->done()) continue;
      if (frame->data.find("\"error\"") != std::string::npos)
        co_return make_error(500, "failed", frame->data);
      if (frame->data.find("\"text\":\"\"") == std::string::npos) times.push_back(now);
    }
  }
  co_return times;
}

awaitable<void> running_stream(Run& run) {
  ++run.open;
  while (std::chrono::steady_clock::now() < run.until) {
    const auto times = co_await stream_once(run, body(run, 16, run.load.stream_tokens));
    if (!times) {
      ++run.failed;
      co_await run.reactor.sleep(std::chrono::milliseconds(100));
      continue;
    }
    for (size_t i = 1; i < times->size(); ++i) run.itl_ms.push_back((*times)[i] - (*times)[i - 1]);
    run.stream_pieces += static_cast<int64_t>(times->size());
  }
  --run.open;
}

awaitable<void> one_prompt(Run& run) {
  ++run.open;
  const auto times = co_await stream_once(run, body(run, run.load.prompt_tokens, 8));
  if (!times || times->empty()) {
    ++run.failed;
  } else {
    run.ttft_ms.push_back(times->front());
  }
  --run.open;
}

awaitable<void> arrivals(Run& run, double rate) {
  std::exponential_distribution<double> gap(rate);
  co_await run.reactor.sleep(std::chrono::seconds(2));  // the streams run first
  while (std::chrono::steady_clock::now() < run.until) {
    co_await run.reactor.sleep(from_seconds(gap(run.arrivals)));
    if (std::chrono::steady_clock::now() < run.until) run.reactor.spawn(one_prompt(run));
  }
}

awaitable<void> whole(Run& run, double rate) {
  run.until = std::chrono::steady_clock::now() + run.load.seconds;
  for (int32_t i = 0; i < run.load.streams; ++i) run.reactor.spawn(running_stream(run));
  run.reactor.spawn(arrivals(run, rate));
  co_await run.reactor.sleep(run.load.seconds + std::chrono::seconds(1));
  for (int i = 0; i < 1200 && run.open > 0; ++i)
    co_await run.reactor.sleep(std::chrono::milliseconds(100));
}

awaitable<void> measure(Run& run, double& tokens_per_second) {
  // Two at once keep the worker busy while the other one's first token travels.
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const auto times = co_await stream_once(run, body(run, run.load.prompt_tokens, 1));
    if (times && !times->empty()) seconds.push_back(times->front() / 1e3);
  }
  std::ranges::sort(seconds);
  tokens_per_second = seconds.empty() ? 0 : run.load.prompt_tokens / seconds[seconds.size() / 2];
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

int main_of(const std::vector<std::string>& arguments) {
  Run run;
  config::Options options("bench_interference", "How long prompts disturb running streams.");
  options.positional(run.load.url, "URL", "the server", false);
  options.value(run.load.streams, "streams", "N", "streams running at once", 0, 1024);
  options.value(run.load.stream_tokens, "stream-tokens", "N", "tokens of each streamed answer", 1,
                8192);
  options.value(run.load.prompt_tokens, "prompt-tokens", "N", "tokens of each long prompt", 1,
                8192);
  options.value(run.load.rate, "rate", "R", "long prompts a second");
  options.value(run.load.seconds, "seconds", "TIME", "length of the run");
  options.flag(run.load.measure, "measure", "only measures the prefill capacity");
  auto parsed = options.parse(arguments);
  if (!parsed || parsed->help) {
    std::fputs(parsed ? parsed->help->c_str() : parsed.error().message.c_str(), stderr);
    return 2;
  }
  auto url = net::parse_url(run.load.url);
  if (!url) {
    std::fprintf(stderr, "%s\n", url.error().message.c_str());
    return 2;
  }
  run.url = *url;
  if (run.load.measure) {
    double rate = 0;
    net::run_until_done(run.reactor, measure(run, rate));
    std::printf("%.0f\n", rate);
    return rate > 0 ? 0 : 1;
  }
  const double rate = std::strtod(run.load.rate.c_str(), nullptr);
  net::run_until_done(run.reactor, whole(run, rate));
  std::printf(
      "itl_p50_ms=%.1f itl_p90_ms=%.1f itl_p99_ms=%.1f stream_tokens_per_s=%.1f ttft_p50_ms=%.0f "
      "ttft_p90_ms=%.0f prompts=%zu failed=%d unfinished=%d\n",
      percentile(run.itl_ms, 0.5), percentile(run.itl_ms, 0.9), percentile(run.itl_ms, 0.99),
      static_cast<double>(run.stream_pieces) / to_seconds(run.load.seconds),
      percentile(run.ttft_ms, 0.5), percentile(run.ttft_ms, 0.9), run.ttft_ms.size(), run.failed,
      run.open);
  return run.failed == 0 && run.open == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::main_of({argv + 1, argv + argc}); }
