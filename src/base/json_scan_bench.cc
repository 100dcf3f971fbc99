// Scanning a megabyte of JSON without a tree, beside simdjson's whole parse into our tree and a
// bare copy of the bytes (the limit of anything that touches each byte once).
//
//   build/release/bench/base_bench
#include <cstring>

#include <benchmark/benchmark.h>

#include "base/json_skip.h"
#include "base/json_splice.h"

namespace tandem {
namespace {

constexpr size_t kSize = 1 << 20;

// Prose; source code with an escape every few words; text outside ASCII; token ids; structure.
std::string chat(const std::string& piece) {
  std::string text = R"({"model":"m","stream":true,"messages":[)";
  for (int turn = 0; text.size() < kSize; ++turn) {
    text += std::string(turn == 0 ? "" : ",") + R"({"role":"user","content":")";
    for (size_t i = 0; i < 4000; i += piece.size()) text += piece;
    text += "\"}";
  }
  return text + "]}";
}

std::string body(int64_t kind) {
  switch (kind) {
    case 0:
      return chat("a sentence of plain words that goes on for a while, ");
    case 1:
      return chat(R"(  if (\"x\" == y) {\n    return\t1;\n  }\n)");
    case 2:
      return chat(
          "\xE6\xB0\xB4\xE3\x81\xAE\xE4\xB8\xAD\xE3\x81\xAE\xE6\x9C\x88 \xC3\xA9t\xC3\xA9 ");
    case 3: {
      std::string text = R"({"input_ids":[1)";
      for (int i = 0; text.size() < kSize; ++i) text += "," + std::to_string(i * 7919 % 150000);
      return text + "]}";
    }
    default: {
      std::string text = R"({"tools":[0)";
      while (text.size() < kSize)
        text +=
            R"(,{"type":"function","function":{"name":"f","parameters":{"a":{"type":"integer"}}}})";
      return text + "]}";
    }
  }
}

const char* const kKinds[] = {"prose", "code", "wide", "ids", "tools"};

void bench_scan(benchmark::State& state) {
  const std::string text = body(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(scan_json(text));
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.SetLabel(kKinds[state.range(0)]);
}
BENCHMARK(bench_scan)->DenseRange(0, 4)->Unit(benchmark::kMicrosecond);

void bench_parse_json(benchmark::State& state) {
  const std::string text = body(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(parse_json(text));
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.SetLabel(kKinds[state.range(0)]);
}
BENCHMARK(bench_parse_json)->DenseRange(0, 4)->Unit(benchmark::kMicrosecond);

void bench_copy(benchmark::State& state) {
  const std::string text = body(0);
  std::string into(text.size(), 0);
  for (auto _ : state) {
    std::memcpy(into.data(), text.data(), text.size());
    benchmark::DoNotOptimize(into.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}
BENCHMARK(bench_copy)->Unit(benchmark::kMicrosecond);

void bench_strings(benchmark::State& state) {
  const auto level = static_cast<CpuLevel>(state.range(0));
  std::string text;
  while (text.size() < kSize) text += R"(  if (\"x\" == y) {\n    return\t1;\n  }\n)";
  text += '"';
  for (auto _ : state)
    benchmark::DoNotOptimize(json_skip(level).string(text.data(), text.data() + text.size()));
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
}
BENCHMARK(bench_strings)->DenseRange(0, 2)->Unit(benchmark::kMicrosecond);

void bench_splice(benchmark::State& state) {
  const auto text = std::make_shared<const std::string>(body(0));
  const auto scan = scan_json(*text);
  for (auto _ : state) {
    JsonEdit edit(*scan);
    edit.set("stream", "false");
    edit.set("kv_transfer_params", R"({"do_remote_decode":true})");
    benchmark::DoNotOptimize(splice(text, edit.edits()));
  }
}
BENCHMARK(bench_splice);

}  // namespace
}  // namespace tandem
