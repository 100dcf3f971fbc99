// What the router adds: a streamed chat request straight to a fake unified worker, the same through
// the router, and through the router to a fake pair (two legs). Everything runs on one thread, so a
// difference is processor time, not waiting.
#include <benchmark/benchmark.h>

#include "net/http_client.h"
#include "observe/log.h"
#include "router/fake_worker.h"
#include "router/router.h"

namespace tandem::router {
namespace {

enum class Way { kDirect, kUnified, kPair };

void bench_chat(benchmark::State& state, Way way) {
  observe::set_log_level(observe::LogLevel::kOff);
  net::Reactor reactor;
  std::vector<std::unique_ptr<FakeWorker>> workers;
  RouterOptions options;
  options.secret = "s3cret";
  options.access_log = false;
  options.policy.local_prefill_tokens = 0;
  for (const WorkerRole role : way == Way::kPair
                                   ? std::vector{WorkerRole::kPrefill, WorkerRole::kDecode}
                                   : std::vector{WorkerRole::kUnified}) {
    workers.push_back(std::make_unique<FakeWorker>(reactor, role));
    workers.back()->delay = Duration(0);
    workers.back()->reads_bodies = false;
    options.workers.push_back(workers.back()->address());
  }
  Router router(reactor, options);
  if (!router.start()) return state.SkipWithError("start");
  net::HttpServer server(reactor, {}, router.handler());
  const uint16_t port = server.listen().value();
  net::HttpClient client(reactor);

  net::ClientRequest request;
  request.method = "POST";
  request.host = "127.0.0.1";
  request.port = way == Way::kDirect ? net::parse_url(options.workers[0].url)->port : port;
  request.target = "/v1/chat/completions";
  request.headers.add("x-tandem-auth", "s3cret");
  std::string body = R"({"messages":[{"role":"user","content":")" +
                     std::string(static_cast<size_t>(state.range(0)), 'a') + R"("}],"stream":true)";
  body += way == Way::kDirect ? R"(,"tandem":{"prompt_token_ids":[1]}})" : "}";
  request.body = std::move(body);
  net::run_until_done(
      reactor,
      [](net::Reactor& loop, Router& routing, net::HttpClient& from, const net::ClientRequest& ask,
         std::vector<std::unique_ptr<FakeWorker>>& pool,
         benchmark::State& timing) -> net::asio::awaitable<void> {
        while (!routing.ready()) co_await loop.sleep(std::chrono::milliseconds(1));
        for (auto _ : timing) {
          auto response = co_await net::fetch(from, ask);
          if (!response || response->status != 200) timing.SkipWithError("failed");
          for (auto& worker : pool) worker->seen.clear();
        }
      }(reactor, router, client, request, workers, state));
}

void bench_direct(benchmark::State& state) { bench_chat(state, Way::kDirect); }
void bench_unified(benchmark::State& state) { bench_chat(state, Way::kUnified); }
void bench_pair(benchmark::State& state) { bench_chat(state, Way::kPair); }
BENCHMARK(bench_direct)->Arg(200)->Arg(3000)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(bench_unified)->Arg(200)->Arg(3000)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(bench_pair)->Arg(200)->Arg(3000)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace tandem::router
