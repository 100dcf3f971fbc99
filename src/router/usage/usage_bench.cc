// What a frame costs that has nothing to edit, and what the one costs that has.
//
//   build/release/bench/router_usage_bench
#include <benchmark/benchmark.h>

#include "router/usage/reply_rewriter.h"

namespace tandem::router {
namespace {

const std::string kToken =
    R"({"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,)"
    R"("model":"organisation/model-name","choices":[{"index":0,"delta":{"content":" token"},)"
    R"("logprobs":null,"finish_reason":null,"token_ids":null}]})";
const std::string kLast =
    R"({"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,)"
    R"("model":"organisation/model-name","choices":[],"usage":{"prompt_tokens":221,)"
    R"("total_tokens":241,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":220}}})";

ReplyRules rules() {
  ReplyRules made;
  made.pair = true;
  made.strip = {"kv_transfer_params", "prompt_token_ids"};
  return made;
}

void bench_token_frame(benchmark::State& state) {
  const ReplyRewriter rewriter(rules());
  for (auto _ : state) benchmark::DoNotOptimize(rewriter.need(kToken, false));
  state.SetBytesProcessed(static_cast<int64_t>(kToken.size()) * state.iterations());
}
BENCHMARK(bench_token_frame);

void bench_last_frame(benchmark::State& state) {
  PromptTruth truth;
  truth.counts = {221, 128, std::nullopt};
  for (auto _ : state) {
    ReplyRewriter rewriter(rules());
    benchmark::DoNotOptimize(rewriter.rewrite(kLast, false, &truth));
  }
}
BENCHMARK(bench_last_frame);

void bench_large_event(benchmark::State& state) {
  const std::string json =
      R"({"type":"response.completed","response":{"output":[{"text":")" +
      std::string(static_cast<size_t>(state.range(0)), 'x') +
      R"("}],"usage":{"input_tokens":40,"input_tokens_details":{"cached_tokens":39},)"
      R"("output_tokens":1,"total_tokens":41}}})";
  PromptTruth truth;
  truth.counts = {221, 128, std::nullopt};
  ReplyRules made = rules();
  made.api = Api::kResponses;
  for (auto _ : state) {
    ReplyRewriter rewriter(made);
    benchmark::DoNotOptimize(rewriter.need(json, false));
    benchmark::DoNotOptimize(rewriter.rewrite(json, false, &truth));
  }
  state.SetBytesProcessed(static_cast<int64_t>(json.size()) * state.iterations());
}
BENCHMARK(bench_large_event)->Arg(64 << 10)->Arg(8 << 20)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem::router
