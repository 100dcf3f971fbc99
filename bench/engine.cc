// engine: how fast a model's passes are here, and which share of the floor that is
// (engine_floor.h): prefill, decode at several depths, batches of short contexts. Passes only: no
// scheduler, sampling or HTTP; what `llama-bench` and `llama-batched-bench` measure of theirs.
//
//   bench_engine --model models/smollm2-135m-instruct.Q4_1.gguf --threads 2
//   bench_engine --shape tinyllama --bits 4.5 --threads 2      only the floors, without a model
//
// Contexts are pages of equal small values, not of computed ones: attention's work does not depend
// on what they hold. With --json the rows are written for bench/compare_cpu.py too.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/json_value.h"
#include "config/options.h"
#include "engine_floor.h"
#include "model/registry.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/limits.h"
#include "ops/operators.h"
#include "weights/checkpoint.h"
#include "weights/format.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int32_t kBlock = 16;

struct Flags {
  std::string model = "models/smollm2-135m-instruct.Q4_1.gguf";
  std::string shape;
  std::string bits = "4.5";
  std::string prefill = "512,2048";
  std::string depths = "0,4096,16384";
  std::string batches = "1,2,4,8,16,32";
  std::string numerics = "fast";
  std::string kv_dtype;
  std::string ceilings;
  std::string json;
  int32_t chunk = 512;
  int32_t batch_depth = 32;
  int32_t tokens = 32;
  int32_t threads = 0;
  int32_t rounds = 3;
};

struct Row {
  std::string phase;
  int32_t tokens = 0;  // of a prompt
  int32_t depth = 0;
  int32_t batch = 1;
  Floor floor;        // of one measurement
  double amount = 0;  // tokens of one measurement
  std::vector<double> seconds;

  double median() const {
    std::vector<double> sorted = seconds;
    std::ranges::sort(sorted);
    return sorted.empty() ? 0 : sorted[sorted.size() / 2];
  }
  std::string name() const {
    if (phase == "prefill") return "prefill " + std::to_string(tokens);
    if (phase == "decode") return "decode at " + std::to_string(depth);
    return std::to_string(batch) + " sequences";
  }
};

std::vector<int32_t> numbers(const std::string& text) {
  std::vector<int32_t> out;
  std::string word;
  for (const char c : text + ",") {
    if (c != ',') {
      word += c;
    } else if (!word.empty()) {
      out.push_back(std::max(0, std::atoi(word.c_str())));
      word.clear();
    }
  }
  return out;
}

// Sequences with pages of their own, and the pass that gives each of them some rows.
class Contexts {
 public:
  Contexts(model::Model& model, int32_t sequences, int32_t positions)
      : model_(model), vocab_(static_cast<size_t>(model.config().vocab)) {
    const ops::PageLayout layout = model.page_layout(kBlock);
    const int32_t blocks = (positions + kBlock - 1) / kBlock;
    const size_t stride = (layout.page_bytes() + 63) / 64 * 64;
    const int32_t each = blocks * layout.groups;
    view_ = {nullptr, stride, each * sequences, layout};
    const size_t bytes = stride * static_cast<size_t>(view_.page_count);
    memory_ = ops::allocate_aligned(bytes);
    view_.base = memory_.get();
    if (memory_) std::memset(memory_.get(), 0x3C, bytes);
    pages_.resize(static_cast<size_t>(sequences));
    for (int32_t i = 0; i < sequences; ++i) {
      pages_[static_cast<size_t>(i)].resize(static_cast<size_t>(each));
      std::iota(pages_[static_cast<size_t>(i)].begin(), pages_[static_cast<size_t>(i)].end(),
                i * each);
    }
  }
  bool good() const { return memory_ != nullptr; }

  // `rows` tokens of each sequence from position `first` on; logits of each one's last row, or
  // none.
  Status pass(int32_t first, int32_t rows, bool logits) {
    std::vector<int32_t> tokens;
    std::vector<int32_t> wanted;
    std::vector<ops::SequenceRows> batch;
    for (const std::vector<int32_t>& pages : pages_) {
      const auto begin = static_cast<int32_t>(tokens.size());
      const auto used = static_cast<size_t>((first + rows + kBlock - 1) / kBlock) *
                        static_cast<size_t>(view_.layout.groups);
      batch.push_back({.first_row = begin,
                       .row_count = rows,
                       .first_position = first,
                       .pages = std::span(pages).first(used)});
      for (int32_t i = 0; i < rows; ++i)
        tokens.push_back(static_cast<int32_t>(100 + (random_ = random_ * 1664525 + 1013904223) %
                                                        (vocab_ - 200)));
      if (logits) wanted.push_back(static_cast<int32_t>(tokens.size()) - 1);
    }
    logits_.resize(wanted.size() * vocab_);
    return model_.forward(
        {.tokens = tokens, .sequences = batch, .logit_rows = wanted, .layer_done = {}}, view_,
        logits_);
  }

 private:
  model::Model& model_;
  size_t vocab_;
  ops::AlignedBytes memory_;
  ops::PageArenaView view_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<float> logits_;
  uint32_t random_ = 1;
};

// Seconds of one measurement of a row, after a short one that is not counted.
Result<double> measure(const Flags& flags, model::Model& model, const Row& row) {
  const bool prefill = row.phase == "prefill";
  Contexts contexts(model, row.batch, row.depth + (prefill ? row.tokens : flags.tokens));
  if (!contexts.good()) return internal_error("no memory for the contexts");
  TANDEM_CHECK(contexts.pass(row.depth, 1, true));
  const auto begin = Clock::now();
  if (prefill) {
    for (int32_t done = 0; done < row.tokens; done += flags.chunk) {
      const int32_t rows = std::min(flags.chunk, row.tokens - done);
      TANDEM_CHECK(contexts.pass(row.depth + done, rows, done + rows == row.tokens));
    }
  } else {
    for (int32_t i = 0; i < flags.tokens; ++i) TANDEM_CHECK(contexts.pass(row.depth + i, 1, true));
  }
  return to_seconds(Clock::now() - begin);
}

Row prefill_row(const Flags& flags, const EngineShape& shape, const Ceilings& ceilings,
                int32_t tokens) {
  Row row;
  row.phase = "prefill";
  row.tokens = tokens;
  row.amount = tokens;
  row.floor = prefill_floor(shape, ceilings, tokens, flags.chunk, 0);
  return row;
}

Row decode_row(const Flags& flags, const EngineShape& shape, const Ceilings& ceilings,
               const char* phase, int32_t batch, int32_t depth) {
  Row row;
  row.phase = phase;
  row.depth = depth;
  row.batch = batch;
  row.amount = static_cast<double>(batch) * flags.tokens;
  for (int32_t i = 0; i < flags.tokens; ++i) {
    const Floor step = pass_floor(shape, ceilings, batch, depth + i, 1, batch);
    row.floor.operations_seconds += step.operations_seconds;
    row.floor.bytes_seconds += step.bytes_seconds;
  }
  return row;
}

std::vector<Row> plan(const Flags& flags, const EngineShape& shape, const Ceilings& ceilings,
                      int32_t longest) {
  std::vector<Row> rows;
  for (const int32_t tokens : numbers(flags.prefill)) {
    if (tokens > 0 && tokens <= longest)
      rows.push_back(prefill_row(flags, shape, ceilings, tokens));
  }
  for (const int32_t depth : numbers(flags.depths)) {
    if (depth + flags.tokens <= longest)
      rows.push_back(decode_row(flags, shape, ceilings, "decode", 1, depth));
  }
  for (const int32_t batch : numbers(flags.batches)) {
    if (batch > 0)
      rows.push_back(decode_row(flags, shape, ceilings, "batch", batch, flags.batch_depth));
  }
  return rows;
}

void print(const std::vector<Row>& rows) {
  const bool measured = !rows.empty() && !rows.front().seconds.empty();
  std::printf("\n| phase | floor, s | bound by | at the floor, tokens/s |%s\n",
              measured ? " measured, s | tokens/s | share of the floor |" : "");
  std::printf("| --- | --- | --- | --- |%s\n", measured ? " --- | --- | --- |" : "");
  for (const Row& row : rows) {
    std::printf("| %s | %.4f | %s | %.1f |", row.name().c_str(), row.floor.seconds(),
                row.floor.bound(), row.amount / row.floor.seconds());
    if (measured) {
      std::printf(" %.4f | %.1f | %.0f %% |", row.median(), row.amount / row.median(),
                  100 * row.floor.seconds() / row.median());
    }
    std::printf("\n");
  }
}

JsonValue json_of(const Row& row) {
  JsonValue out = JsonValue::object();
  out.set("phase", JsonValue::string(row.phase));
  out.set("name", JsonValue::string(row.name()));
  out.set("tokens", JsonValue::integer(row.tokens));
  out.set("depth", JsonValue::integer(row.depth));
  out.set("batch", JsonValue::integer(row.batch));
  out.set("amount", JsonValue::real(row.amount));
  out.set("floor_s", JsonValue::real(row.floor.seconds()));
  out.set("bound", JsonValue::string(row.floor.bound()));
  JsonValue seconds = JsonValue::array();
  for (const double value : row.seconds) seconds.push_back(JsonValue::real(value));
  out.set("seconds", std::move(seconds));
  return out;
}

Status write_json(const Flags& flags, const std::string& path, const Ceilings& ceilings,
                  const std::vector<Row>& rows) {
  if (flags.json.empty()) return {};
  JsonValue out = JsonValue::object();
  out.set("path", JsonValue::string(path));
  out.set("threads", JsonValue::integer(flags.threads));
  out.set("memory_bytes_per_s", JsonValue::real(ceilings.memory_bytes));
  out.set("float_operations_per_s", JsonValue::real(ceilings.float_operations));
  out.set("int8_operations_per_s", JsonValue::real(ceilings.int8_operations));
  JsonValue list = JsonValue::array();
  for (const Row& row : rows) list.push_back(json_of(row));
  out.set("rows", std::move(list));
  std::ofstream file(flags.json);
  file << out.dump() << '\n';
  file.close();
  if (!file) return internal_error("cannot write " + flags.json);
  return {};
}

// Whether the format that most weights have is multiplied as int8.
bool mostly_int8(const weights::Checkpoint& checkpoint) {
  size_t quantized = 0;
  size_t others = 0;
  for (const weights::Tensor& tensor : checkpoint.tensors()) {
    const size_t bytes = tensor.bytes.size();
    (ops::has_int8_kernel(tensor.format) ? quantized : others) += bytes;
  }
  return quantized > others;
}

EngineShape shape_of(model::Model& model, bool int8_products) {
  const model::ModelConfig& config = model.config();
  const ops::PageLayout layout = model.page_layout(kBlock);
  EngineShape shape;
  shape.layers = config.layers;
  shape.hidden = config.hidden;
  shape.heads = config.heads;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.ffn = config.ffn;
  shape.vocab = config.vocab;
  shape.kv_bytes = static_cast<double>(layout.page_bytes()) * layout.groups / kBlock;
  shape.int8_products = int8_products;
  // A table of its own for the embedding is not read but for a row of each token.
  const double matrices = shape.layer_weights() + shape.head_weights();
  shape.weight_bytes = static_cast<double>(model.memory().weights) *
                       (config.tied_embedding ? 1 : matrices / (matrices + shape.head_weights()));
  for (const model::PageGroup& group : model.page_groups()) {
    if (group.window == 0) continue;
    shape.window = group.window;
    shape.windowed_layers += static_cast<double>(group.layers.size());
  }
  return shape;
}

Result<EngineShape> named_shape(const Flags& flags) {
  EngineShape shape;
  if (flags.shape == "tinyllama") {
    shape = {22, 2048, 32, 4, 64, 5632, 32000, 0, 0, true, 0, 0};
  } else if (flags.shape == "smollm2") {
    shape = {30, 576, 9, 3, 64, 1536, 49152, 0, 0, true, 0, 0};
  } else {
    return make_error(400, "invalid_option", "--shape is tinyllama or smollm2");
  }
  const double bits = std::atof(flags.bits.c_str());
  if (!(bits > 0)) return make_error(400, "invalid_option", "--bits needs a number");
  shape.int8_products = bits < 16;
  shape.weight_bytes = (shape.layer_weights() + shape.head_weights()) * bits / 8;
  shape.kv_bytes = shape.layers * shape.kv_heads * shape.head_dim * 2 * 2;
  return shape;
}

Result<Ceilings> find_ceilings(const Flags& flags, ops::cpu::Isa isa) {
  if (flags.ceilings.empty()) {
    const ops::cpu::MachineLimits limits = ops::cpu::measure_limits(isa, flags.threads);
    return Ceilings{limits.memory_bytes, limits.float_operations, limits.int8_operations};
  }
  Ceilings given;
  if (std::sscanf(flags.ceilings.c_str(), "%lf,%lf,%lf", &given.memory_bytes,
                  &given.float_operations, &given.int8_operations) != 3)
    return make_error(400, "invalid_option", "--ceilings needs three numbers");
  given.memory_bytes *= 1e9;
  given.float_operations *= 1e9;
  given.int8_operations *= 1e9;
  return given;
}

Status run(const Flags& flags) {
  const auto kernels = ops::cpu::select_kernels();
  if (!kernels) return tl::unexpected(kernels.error());
  TANDEM_TRY(ceilings, find_ceilings(flags, (*kernels)->isa));
  std::printf("%s, %d threads: memory read %.1f GB/s, float32 %.0f GFLOP/s, int8 %.0f GOP/s\n",
              (*kernels)->name, flags.threads, ceilings.memory_bytes * 1e-9,
              ceilings.float_operations * 1e-9, ceilings.int8_operations * 1e-9);
  if (!flags.shape.empty()) {
    TANDEM_TRY(shape, named_shape(flags));
    const std::vector<Row> rows = plan(flags, shape, ceilings, 1 << 30);
    print(rows);
    return write_json(flags, flags.shape, ceilings, rows);
  }
  model::ModelOptions options;
  options.numerics = model::numerics_of(flags.numerics);
  options.threads = flags.threads;
  if (!flags.kv_dtype.empty()) options.kv_dtype = ops::parse_kv_dtype(flags.kv_dtype);
  const auto batches = numbers(flags.batches);
  options.max_rows = std::max(flags.chunk, batches.empty() ? 1 : std::ranges::max(batches));
  TANDEM_TRY(checkpoint, weights::Checkpoint::open(flags.model));
  const bool int8 = options.numerics == model::Numerics::kFast && mostly_int8(checkpoint);
  TANDEM_TRY(model, model::load_model(std::move(checkpoint), options));
  model->bind_caller();
  const EngineShape shape = shape_of(*model, int8);
  std::printf("%s, %s, weights %.1f MB, KV %.0f bytes a token, chunks of %d\n", flags.model.c_str(),
              model->numeric_path().c_str(), shape.weight_bytes * 1e-6, shape.kv_bytes,
              flags.chunk);
  std::vector<Row> rows = plan(flags, shape, ceilings, model->config().context_length);
  for (int32_t round = 0; round < flags.rounds; ++round) {
    for (Row& row : rows) {
      TANDEM_TRY(seconds, measure(flags, *model, row));
      row.seconds.push_back(seconds);
    }
  }
  print(rows);
  return write_json(flags, model->numeric_path(), ceilings, rows);
}

int main_of(const std::vector<std::string>& arguments) {
  Flags flags;
  config::Options options("bench_engine",
                          "How fast a model's passes are, as shares of what operations and bytes "
                          "allow on this machine.");
  options.value(flags.model, "model", "PATH", "a model file");
  options.value(flags.shape, "shape", "NAME",
                "tinyllama or smollm2: the floors alone, of weights of --bits");
  options.value(flags.bits, "bits", "N", "of a weight, scales included (4.5: Q4_0)");
  options.value(flags.prefill, "prefill", "LIST", "prompt lengths; empty: none");
  options.value(flags.depths, "depths", "LIST", "contexts that one sequence decodes behind");
  options.value(flags.batches, "batches", "LIST", "sequences that decode at once");
  options.value(flags.chunk, "chunk", "N", "rows of a prefill pass", 1, 1 << 16);
  options.value(flags.batch_depth, "batch-depth", "N", "context of each sequence of a batch", 0,
                1 << 20);
  options.value(flags.tokens, "tokens", "N", "decode steps of a measurement", 1, 4096);
  options.value(flags.threads, "threads", "N", "compute threads; 0: all cores", 0, 256);
  options.value(flags.rounds, "rounds", "N", "measurements of each row, in turn; the median counts",
                1, 99);
  options.choice(flags.numerics, "numerics", model::kNumericsWords, "as `tandem worker` has it");
  options.value(flags.kv_dtype, "kv-dtype", "NAME", "what pages hold; empty: the default");
  options.value(flags.ceilings, "ceilings", "LIST",
                "memory read in GB/s, float32 and int8 in GOP/s, instead of measuring them");
  options.value(flags.json, "json", "FILE", "the rows, for bench/compare_cpu.py");
  const auto parsed = options.parse(arguments);
  if (!parsed || parsed->help) {
    std::fputs(parsed ? parsed->help->c_str() : parsed.error().message.c_str(),
               parsed ? stdout : stderr);
    return parsed ? 0 : 2;
  }
  if (flags.threads == 0)
    flags.threads = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  if (const Status status = run(flags); !status) {
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) { return tandem::bench::main_of({argv + 1, argv + argc}); }
