// The kernels against the machine's limits, on one thread: memory bandwidth for one row, arithmetic
// for many.
//
// The limits are measured first, here and now: a long read for bandwidth, and for arithmetic the
// multiply-add rate of float32 and of the int8 dot product of the instruction set in use, on
// registers only. Each row then prints achieved / ceiling.
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>

#include <benchmark/benchmark.h>

#include "ops/cpu/dispatch.h"
#include "ops/cpu/limits.h"
#include "ops/operators.h"
#include "ops/page_conversion.h"

namespace tandem::ops {
namespace {

using weights::Format;

const cpu::Kernels& kernels() {
  static const cpu::Kernels* const kSelected = [] {
    auto result = cpu::select_kernels();
    if (!result) {
      std::fprintf(stderr, "%s\n", result.error().message.c_str());
      std::exit(2);
    }
    return *result;
  }();
  return *kSelected;
}

const cpu::MachineLimits& limits() {
  static const cpu::MachineLimits kMeasured = cpu::measure_limits(kernels().isa);
  return kMeasured;
}

// What activations are multiplied as.
enum class Inputs { kFloat, kBf16, kInt8 };

PackedMatrix random_matrix(Format format, int32_t rows, int32_t columns, Pairs pairs) {
  std::vector<std::byte> file(weights::row_bytes(format, columns) * rows);
  std::vector<float> values(columns);
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(state >> 8) * 0x1p-24F - 0.5F;
  }
  const size_t size = weights::row_bytes(format, columns);
  weights::quantize_row(format, values, std::span(file).first(size));
  for (int32_t row = 1; row < rows; ++row) std::memcpy(file.data() + row * size, file.data(), size);
  device::ComputeThreads threads(1);
  return std::move(*PackedMatrix::pack(format, rows, columns, file, threads, nullptr, pairs));
}

// Rows of activations: state.range(0). Weights cycle through more memory than the caches hold, as
// in a real pass.
void linear_bench(benchmark::State& state, Format format, Inputs inputs) {
  constexpr int32_t kColumns = 2048;
  constexpr int32_t kRows = 2048;
  const auto m = static_cast<int32_t>(state.range(0));
  const CpuExecutor executor = *CpuExecutor::create(kernels(), 1, 64);
  std::vector<PackedMatrix> matrices;
  size_t bytes = 0;
  do {
    matrices.push_back(random_matrix(format, kRows, kColumns,
                                     inputs == Inputs::kBf16 ? Pairs::kF16AndBf16 : Pairs::kNone));
    bytes += matrices.back().bytes();
  } while (m == 1 && bytes < (size_t{256} << 20));
  std::vector<float> x(static_cast<size_t>(m) * kColumns, 0.5F);
  std::vector<cpu::ActivationBlock> blocks(x.size() / 32);
  std::vector<float> out(static_cast<size_t>(m) * kRows);
  Activations activations = {x.data(), inputs == Inputs::kInt8 ? blocks.data() : nullptr, m,
                             kColumns};
  std::vector<uint16_t> bf16(m * activations.bf16_per_row());
  if (inputs == Inputs::kBf16) activations.bf16 = bf16.data();
  quantize(executor, activations);
  size_t turn = 0;
  for (auto _ : state) {
    const LinearTarget target[] = {{&matrices[turn++ % matrices.size()], out.data(), kRows}};
    linear(executor, activations, target);
    benchmark::DoNotOptimize(out.data());
  }
  using benchmark::Counter;
  const double operations = 2.0 * m * kRows * kColumns * static_cast<double>(state.iterations());
  const double read =
      static_cast<double>(matrices[0].bytes()) * static_cast<double>(state.iterations());
  const double peak = inputs == Inputs::kInt8   ? limits().int8_operations
                      : inputs == Inputs::kBf16 ? limits().bf16_operations
                                                : limits().float_operations;
  state.counters["GB/s"] = Counter(read * 1e-9, Counter::kIsRate);
  state.counters["GOP/s"] = Counter(operations * 1e-9, Counter::kIsRate);
  state.counters["of_memory"] = Counter(read / limits().memory_bytes, Counter::kIsRate);
  state.counters["of_compute"] = Counter(operations / peak, Counter::kIsRate);
}

// One layer of attention at state.range(1) positions for state.range(0) rows: 9 heads over 3 KV
// heads of 64.
void attention_bench(benchmark::State& state, KvDtype dtype) {
  const auto rows = static_cast<int32_t>(state.range(0));
  const auto positions = static_cast<int32_t>(state.range(1));
  const AttentionShape shape = {.heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125F};
  PageArenaView pages;
  pages.layout = {.dtype = dtype,
                  .layout_id = kCpuLayoutId,
                  .layers = 1,
                  .kv_heads = 3,
                  .head_dim = 64,
                  .block_tokens = 16};
  pages.stride = pages.layout.page_bytes();
  pages.page_count = (positions + 15) / 16;
  const AlignedBytes storage = allocate_aligned(pages.stride * pages.page_count);
  pages.base = storage.get();
  // Bytes like those of small values: neither NaN nor denormal.
  std::memset(storage.get(), 0x3C, pages.stride * pages.page_count);
  std::vector<int32_t> ids(static_cast<size_t>(pages.page_count));
  std::iota(ids.rbegin(), ids.rend(), 0);
  const SequenceRows sequence[] = {
      {.first_row = 0, .row_count = rows, .first_position = positions - rows, .pages = ids}};
  const CpuExecutor executor = *CpuExecutor::create(kernels(), 1, 64);
  std::vector<float> q(static_cast<size_t>(rows) * 9 * 64, 0.01F);
  std::vector<float> out(q.size());
  AttentionPlan plan(rows, shape);
  plan.plan(sequence, pages.layout, executor);
  for (auto _ : state) {
    plan.run(executor, q.data(), out.data(), {}, pages);
    benchmark::DoNotOptimize(out.data());
  }
  const double pairs = 9.0 * rows * (positions - (rows - 1) / 2.0);
  const double operations = 4.0 * 64 * pairs * static_cast<double>(state.iterations());
  const double bytes = static_cast<double>(pages.stride) * pages.page_count *
                       static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsRate);
  state.counters["of_memory"] =
      benchmark::Counter(bytes / limits().memory_bytes, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(operations * 1e-9, benchmark::Counter::kIsRate);
  state.counters["of_compute"] =
      benchmark::Counter(operations / limits().float_operations, benchmark::Counter::kIsRate);
}

// One layer of attention of state.range(0) sequences, one row each, whose first 4,096 tokens are
// the same pages or, with `apart`, pages of their own; 64 tokens more each. Shapes as S's and T's.
void shared_bench(benchmark::State& state, KvDtype dtype, bool apart) {
  const auto count = static_cast<int32_t>(state.range(0));
  const auto kv_heads = static_cast<int32_t>(state.range(1));
  const auto group = static_cast<int32_t>(state.range(2));
  constexpr int32_t kShared = 4096 / 16;
  constexpr int32_t kOwn = 4;
  const AttentionShape shape = {
      .heads = kv_heads * group, .kv_heads = kv_heads, .head_dim = 64, .scale = 0.125F};
  PageArenaView pages;
  pages.layout = {.dtype = dtype,
                  .layout_id = kCpuLayoutId,
                  .layers = 1,
                  .kv_heads = kv_heads,
                  .head_dim = 64,
                  .block_tokens = 16};
  pages.stride = pages.layout.page_bytes();
  pages.page_count = (apart ? count * kShared : kShared) + count * kOwn;
  const AlignedBytes storage = allocate_aligned(pages.stride * pages.page_count);
  pages.base = storage.get();
  std::memset(storage.get(), 0x3C, pages.stride * pages.page_count);
  std::vector<std::vector<int32_t>> tables;
  std::vector<SequenceRows> sequences;
  int32_t next = apart ? 0 : kShared;
  for (int32_t i = 0; i < count; ++i) {
    std::vector<int32_t> table(kShared + kOwn);
    for (int32_t b = 0; b < kShared + kOwn; ++b) table[b] = b < kShared && !apart ? b : next++;
    tables.push_back(std::move(table));
    sequences.push_back({.first_row = i,
                         .row_count = 1,
                         .first_position = (kShared + kOwn) * 16 - 1,
                         .pages = tables.back()});
  }
  const CpuExecutor executor = *CpuExecutor::create(kernels(), 1, 64);
  std::vector<float> q(static_cast<size_t>(count) * shape.q_columns(), 0.01F);
  std::vector<float> out(q.size());
  AttentionPlan plan(count, shape);
  for (auto _ : state) {
    plan.plan(sequences, pages.layout, executor);
    plan.run(executor, q.data(), out.data(), {}, pages);
    benchmark::DoNotOptimize(out.data());
  }
  const double operations = 4.0 * 64 * shape.heads * count * (kShared + kOwn) * 16 *
                            static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(operations * 1e-9, benchmark::Counter::kIsRate);
  state.counters["of_compute"] =
      benchmark::Counter(operations / limits().float_operations, benchmark::Counter::kIsRate);
}

// Layers of pages (4 KV heads of 64) from one dtype to another.
void conversion_bench(benchmark::State& state, KvDtype from_dtype, KvDtype to_dtype) {
  PageLayout from = {.dtype = from_dtype,
                     .layout_id = kCpuLayoutId,
                     .layers = 1,
                     .kv_heads = 4,
                     .head_dim = 64,
                     .block_tokens = 16};
  PageLayout to = from;
  to.dtype = to_dtype;
  const AlignedBytes source = allocate_aligned(from.layer_bytes());
  const AlignedBytes target = allocate_aligned(to.layer_bytes());
  std::memset(source.get(), 0x3C, from.layer_bytes());
  const AlignedBytes scratch = allocate_aligned(conversion_scratch_floats(to) * sizeof(float));
  for (auto _ : state) {
    convert_layer(kernels(), {from, {}}, source.get(), {to, {}}, target.get(),
                  {reinterpret_cast<float*>(scratch.get()), conversion_scratch_floats(to)});
    benchmark::DoNotOptimize(target.get());
  }
  const double bytes = static_cast<double>(from.layer_bytes() + to.layer_bytes()) *
                       static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsRate);
  state.counters["of_memory"] =
      benchmark::Counter(bytes / limits().memory_bytes, benchmark::Counter::kIsRate);
}

void register_all() {
  for (const Format format : weights::kAllFormats) {
    const std::string name(weights::format_name(format));
    const auto add = [&](const std::string& kind, Inputs inputs) {
      auto* bench = benchmark::RegisterBenchmark(
          std::string("linear/").append(name).append("/").append(kind).c_str(),
          [=](benchmark::State& state) { linear_bench(state, format, inputs); });
      for (const int64_t m : {1, 4, 16, 256}) bench->Arg(m);
      bench->MinTime(0.1);
    };
    add("f32", Inputs::kFloat);
    if (has_int8_kernel(format)) add("i8", Inputs::kInt8);
    if (packed_in_pairs(format, Pairs::kF16AndBf16) && kernels().linear_bf16 != nullptr)
      add("bf16", Inputs::kBf16);
  }
  for (const KvDtype dtype : kAllKvDtypes) {
    const std::string name = "attention/" + std::string(kv_dtype_name(dtype));
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](benchmark::State& state) { attention_bench(state, dtype); })
        ->Args({1, 512})
        ->Args({1, 4096})
        ->Args({1, 262144})
        ->Args({256, 512})
        ->Args({256, 4096})
        ->MinTime(0.1);
  }
  for (const KvDtype dtype : {KvDtype::kBF16, KvDtype::kFp8Static}) {
    for (const bool apart : {false, true}) {
      const std::string name = std::string(apart ? "apart/" : "shared/") +
                               std::string(kv_dtype_name(dtype)) + "/sequences/kv_heads/group";
      benchmark::RegisterBenchmark(
          name.c_str(), [=](benchmark::State& state) { shared_bench(state, dtype, apart); })
          ->Args({8, 3, 3})
          ->Args({16, 3, 3})
          ->Args({16, 4, 8})
          ->MinTime(0.1);
    }
  }
  for (const auto& [from, to] : {std::pair{KvDtype::kBF16, KvDtype::kFp8Static},
                                 {KvDtype::kBF16, KvDtype::kFp8Inline},
                                 {KvDtype::kBF16, KvDtype::kInt8Inline},
                                 {KvDtype::kFp8Static, KvDtype::kBF16}}) {
    const std::string name =
        "convert/" + std::string(kv_dtype_name(from)) + "/" + std::string(kv_dtype_name(to));
    benchmark::RegisterBenchmark(name.c_str(), [from, to](benchmark::State& state) {
      conversion_bench(state, from, to);
    })->MinTime(0.1);
  }
}

}  // namespace
}  // namespace tandem::ops

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const tandem::ops::cpu::MachineLimits& limits = tandem::ops::limits();
  std::printf(
      "%s, one thread: memory read %.1f GB/s, float32 %.1f GFLOP/s, BF16 pairs %.1f, int8 %.1f "
      "GOP/s\n",
      tandem::ops::kernels().name, limits.memory_bytes * 1e-9, limits.float_operations * 1e-9,
      limits.bf16_operations * 1e-9, limits.int8_operations * 1e-9);
  tandem::ops::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
