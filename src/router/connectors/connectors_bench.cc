// What a request's body costs the router: facts, then both legs, at 200 B, 16 KiB and 1 MiB.
//
//   build/release/bench/router_connectors_bench
#include <benchmark/benchmark.h>

#include "router/connectors/leg_body.h"

namespace tandem::router {
namespace {

std::string chat_of(size_t size) {
  std::string text = R"({"model":"m","stream":true,"stream_options":{"include_usage":true},)"
                     R"("max_tokens":100,"messages":[)";
  while (text.size() + 60 < size) {
    if (text.back() != '[') text += ',';
    text += R"({"role":"user","content":")";
    for (size_t i = 0; i < 3000 && text.size() + 60 < size; i += 30)
      text += R"(some words, a line\n and \"more\")";
    text += "\"}";
  }
  return text + "]}";
}

void bench_facts(benchmark::State& state) {
  const std::string body = chat_of(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(read_facts(Api::kChat, body));
  state.SetBytesProcessed(static_cast<int64_t>(body.size()) * state.iterations());
}
BENCHMARK(bench_facts)->Arg(200)->Arg(16 << 10)->Arg(1 << 20)->Unit(benchmark::kMicrosecond);

void bench_both_legs(benchmark::State& state) {
  const auto body =
      std::make_shared<const std::string>(chat_of(static_cast<size_t>(state.range(0))));
  const Connector& connector = **find_connector("sglang");
  const auto facts = read_facts(Api::kChat, *body);
  GlobalIds ids(1);
  uint64_t bits = 1;
  for (auto _ : state) {
    LegValues values = mint(
        connector, *facts, [&] { return bits = bits * 6364136223846793005U + 1; }, ids,
        std::chrono::milliseconds(5));
    values.bootstrap_host = "127.0.0.1";
    values.bootstrap_port = 8998;
    for (const LegPart leg : {LegPart::kPrefill, LegPart::kDecode})
      benchmark::DoNotOptimize(make_leg_body(connector, leg, body, *facts, values));
  }
}
BENCHMARK(bench_both_legs)->Arg(200)->Arg(16 << 10)->Arg(1 << 20)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem::router
