// Decode throughput over concurrency at a fixed context length, with BF16 and with FP8 pages in a
// pool of the same bytes, in this process: the engine with its scheduler, page tables and sampling,
// and a real model's decode passes. The pool holds `--resident` contexts of BF16 pages; beyond that
// requests wait in the queue, and none is preempted (the bench fails if one is).
//
//   bench_kv_dtype --model models/smollm2-135m-instruct.Q4_1.gguf --context 4096 --resident 16
//
// What is not real is the prompts' computation, which would take an hour of this bench's time and
// is not measured: a prefill pass puts copies of one random page into the pages that the engine
// gave it, so every context lies in memory of its own and each decode step reads all of it. The
// time this takes is taken off. Sequences end at different steps and the next one in the queue
// takes the pages, as in a server.
//
// The roofline is printed first: bytes that a step must read (weights and every resident context)
// over the bandwidth that the same threads reach in one long read of the pool.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "cli/common.h"
#include "config/options.h"
#include "device/compute_threads.h"
#include "engine/engine.h"
#include "model/memory_budget.h"
#include "ops/cpu/dispatch.h"
#include "ops/page_conversion.h"
#include "worker/served_model.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model = "models/smollm2-135m-instruct.Q4_1.gguf";
  std::string concurrency = "1,2,4,8,16,24,32,48,64";
  std::string dtypes = "bf16,fp8";
  int32_t context = 4096;
  int32_t resident = 16;
  int32_t tokens = 96;
  int32_t threads = 0;
  int32_t rounds = 3;
  Duration seconds = std::chrono::seconds(4);
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == ',') {
      out.emplace_back();
    } else {
      out.back().push_back(c);
    }
  }
  return out;
}

// A page's worth of random values in the layout's form.
std::vector<std::byte> random_page(const ops::PageLayout& layout) {
  ops::PageLayout exact = layout;
  exact.dtype = ops::KvDtype::kF32;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(exact.page_bytes() / sizeof(float));
  for (float& value : values) value = normal(random);
  std::vector<std::byte> page(layout.page_bytes());
  const size_t floats = ops::conversion_scratch_floats(layout);
  const ops::AlignedBytes scratch = ops::allocate_aligned(floats * sizeof(float));
  for (int32_t slot = 0; slot < layout.layers; ++slot) {
    ops::convert_layer(ops::cpu::kernels_for(ops::cpu::machine_isa()), {exact, {}},
                       reinterpret_cast<const std::byte*>(values.data()) + exact.k_offset(slot, 0),
                       {layout, {}}, page.data() + layout.k_offset(slot, 0),
                       {reinterpret_cast<float*>(scratch.get()), floats});
  }
  return page;
}

// Decodes with the model it holds; fills the pages of longer runs of tokens with copies.
class FilledPrompts final : public model::Model {
 public:
  FilledPrompts(std::unique_ptr<model::Model> inner, int32_t block_tokens, int32_t max_rows)
      : inner_(std::move(inner)),
        page_(random_page(inner_->page_layout(block_tokens))),
        max_rows_(max_rows) {}

  const model::ModelConfig& config() const override { return inner_->config(); }
  ops::PageLayout page_layout(int32_t block_tokens) const override {
    return inner_->page_layout(block_tokens);
  }
  std::vector<model::PageGroup> page_groups() const override { return inner_->page_groups(); }
  model::ModelMemory memory() const override { return inner_->memory(); }
  int32_t max_rows() const override { return max_rows_; }
  std::string numeric_path() const override { return inner_->numeric_path(); }
  double fill_seconds() const { return fill_seconds_; }

  Status forward(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                 std::span<float> logits) override {
    const auto vocab = static_cast<size_t>(config().vocab);
    std::vector<int32_t> tokens;
    std::vector<ops::SequenceRows> decoding;
    std::vector<int32_t> rows;    // of the inner batch whose logits are wanted
    std::vector<size_t> targets;  // and which of the outer batch's logits they are
    const auto begin = Clock::now();
    size_t wanted = 0;
    for (const ops::SequenceRows& sequence : batch.sequences) {
      const auto wants = [&](int32_t row) {
        return wanted < batch.logit_rows.size() && batch.logit_rows[wanted] == row;
      };
      if (sequence.row_count > 1) {
        fill(sequence, pages);
        for (int32_t i = 0; i < sequence.row_count; ++i) {
          if (!wants(sequence.first_row + i)) continue;
          std::ranges::fill(logits.subspan(wanted * vocab, vocab), 0.0F);
          logits[wanted++ * vocab + 100] = 1;
        }
        continue;
      }
      ops::SequenceRows alone = sequence;
      alone.first_row = static_cast<int32_t>(tokens.size());
      if (wants(sequence.first_row)) {
        rows.push_back(alone.first_row);
        targets.push_back(wanted++);
      }
      tokens.push_back(batch.tokens[static_cast<size_t>(sequence.first_row)]);
      decoding.push_back(alone);
    }
    fill_seconds_ = fill_seconds_ + to_seconds(Clock::now() - begin);
    if (tokens.empty()) return {};
    inner_logits_.resize(rows.size() * vocab);
    TANDEM_CHECK(inner_->forward(
        {.tokens = tokens, .sequences = decoding, .logit_rows = rows, .layer_done = {}}, pages,
        inner_logits_));
    for (size_t i = 0; i < targets.size(); ++i)
      std::memcpy(&logits[targets[i] * vocab], &inner_logits_[i * vocab], vocab * sizeof(float));
    return {};
  }

 private:
  void fill(const ops::SequenceRows& sequence, const ops::PageArenaView& pages) const {
    const int32_t block = pages.layout.block_tokens;
    const int32_t groups = pages.layout.groups;
    const int32_t last = (sequence.first_position + sequence.row_count - 1) / block;
    for (int32_t b = sequence.first_position / block; b <= last; ++b) {
      for (int32_t g = 0; g < groups; ++g) {
        const int32_t page = sequence.pages[static_cast<size_t>(b * groups + g)];
        if (page >= 0) std::memcpy(pages.page(page), page_.data(), page_.size());
      }
    }
  }

  std::unique_ptr<model::Model> inner_;
  std::vector<std::byte> page_;
  int32_t max_rows_;
  std::vector<float> inner_logits_;
  std::atomic<double> fill_seconds_ = 0;
};

// One engine over a pool, and clients that ask again as soon as they are answered.
class Server {
 public:
  static Result<std::unique_ptr<Server>> create(const Options& options, ops::KvDtype dtype,
                                                std::span<std::byte> pool) {
    worker::ServedModelOptions load;
    load.model = options.model;
    load.kv_dtype = dtype;
    load.threads = options.threads;
    load.prefill_chunk = 16;
    load.max_sequences = 128;
    TANDEM_TRY(served, worker::load_served_model(load));
    return std::make_unique<Server>(options, std::move(served), pool);
  }

  Server(const Options& options, worker::ServedModel served, std::span<std::byte> pool)
      : options_(options), vocab_(served.model->config().vocab) {
    auto model =
        std::make_unique<FilledPrompts>(std::move(served.model), kBlock, options.context + 256);
    model_ = model.get();
    const ops::PageLayout layout = model->page_layout(kBlock);
    const size_t stride = (layout.page_bytes() + 63) / 64 * 64;
    const ops::PageArenaView view{pool.data(), stride, static_cast<int32_t>(pool.size() / stride),
                                  layout};
    bytes_per_token_ = static_cast<double>(stride) * layout.groups / kBlock;
    weights_ = static_cast<double>(model->memory().weights);
    engine_ = std::make_unique<engine::Engine>(
        std::move(model), served.tokenizer, view, [](int32_t, uint64_t) {},
        engine::EngineOptions{.prefill_chunk = options.context, .max_sequences = 128}, metrics_);
  }
  static constexpr int32_t kBlock = 16;

  double bytes_per_token() const { return bytes_per_token_; }
  double weights() const { return weights_; }
  double preemptions() { return metrics_.counter("tandem_num_preemptions_total", "").value(); }

  // Tokens a second with `clients` clients, `capacity` of which run.
  double measure(int32_t clients, int32_t capacity) {
    stopping_ = false;
    generated_ = 0;
    finished_ = 0;
    for (int32_t i = 0; i < clients; ++i) {
      // The first answers have different lengths, so that sequences do not end together.
      ask(options_.tokens * (1 + i % capacity) / capacity + 1);
    }
    const int32_t running = std::min(clients, capacity);
    while (engine_->stats().running < running || finished_ < running / 2)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto begin = Clock::now();
    const int64_t before = generated_;
    const double filled = model_->fill_seconds();
    std::this_thread::sleep_for(options_.seconds);
    const double seconds = to_seconds(Clock::now() - begin) - (model_->fill_seconds() - filled);
    const double rate = static_cast<double>(generated_ - before) / seconds;
    stopping_ = true;
    std::vector<engine::SequenceId> open;
    {
      const std::lock_guard lock(mutex_);
      open = open_;
      open_.clear();
    }
    for (const auto id : open) engine_->abort(id);
    while (engine_->stats().running + engine_->stats().waiting > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return rate;
  }

 private:
  void ask(int32_t tokens) {
    protocol::GenerateRequest request;
    {
      const std::lock_guard lock(mutex_);
      request.context.request_id = "bench-" + std::to_string(next_++);
      for (int32_t i = 0; i < options_.context - options_.tokens; ++i)
        request.prompt.push_back(static_cast<int32_t>(100 + random_() % (vocab_ - 200)));
    }
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = tokens;
    const auto id = engine_->generate(std::move(request), [this](protocol::TokenEvent event) {
      if (const auto* text = std::get_if<protocol::TextEvent>(&event)) {
        generated_ += static_cast<int64_t>(text->tokens.size());
      } else if (std::holds_alternative<protocol::FinishEvent>(event)) {
        ++finished_;
        if (!stopping_) ask(options_.tokens);
      } else if (const auto* failed = std::get_if<protocol::ErrorEvent>(&event)) {
        std::fprintf(stderr, "%d tokens in: %s\n", static_cast<int>(generated_.load()),
                     failed->error.message.c_str());
        std::exit(1);
      }
    });
    if (!id) {
      std::fprintf(stderr, "%s\n", id.error().message.c_str());
      std::exit(1);
    }
    const std::lock_guard lock(mutex_);
    open_.push_back(*id);
  }

  const Options& options_;
  int32_t vocab_;
  FilledPrompts* model_;  // the engine's
  double bytes_per_token_ = 0;
  double weights_ = 0;
  observe::Metrics metrics_;
  std::mutex mutex_;  // next_, random_, open_
  uint64_t next_ = 0;
  std::mt19937 random_{11};
  std::vector<engine::SequenceId> open_;
  std::atomic<int64_t> generated_ = 0;
  std::atomic<int32_t> finished_ = 0;
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<engine::Engine> engine_;
};

// Bytes a second that `threads` threads read from the pool, the best of three.
double measure_bandwidth(std::span<const std::byte> pool, int32_t threads) {
  device::ComputeThreads compute(threads);
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const auto begin = Clock::now();
    compute.parallel([&](int index, int count) {
      const auto* words = reinterpret_cast<const uint64_t*>(pool.data());
      const size_t share = pool.size() / sizeof(uint64_t) / static_cast<size_t>(count) / 8 * 8;
      uint64_t lanes[8] = {};
      for (size_t i = 0; i < share; i += 8) {
        for (size_t lane = 0; lane < 8; ++lane)
          lanes[lane] ^= words[static_cast<size_t>(index) * share + i + lane];
      }
      for (const uint64_t lane : lanes) sums[static_cast<size_t>(index) * 8] ^= lane;
    });
    best = std::max(best, static_cast<double>(pool.size()) / to_seconds(Clock::now() - begin));
  }
  return best;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Curve {
  std::string name;
  ops::AlignedBytes pool;
  std::unique_ptr<Server> server;
  int32_t capacity = 0;
  std::map<int32_t, std::vector<double>> rates;  // by concurrency

  double predicted(int32_t clients, int32_t context, double bandwidth) const {
    const double running = std::min(clients, capacity);
    return running * bandwidth /
           (server->weights() + running * context * server->bytes_per_token());
  }
};

int run(const Options& options) {
  std::vector<int32_t> points;
  for (const std::string& word : split(options.concurrency)) points.push_back(std::stoi(word));
  worker::ServedModelOptions probe;
  probe.model = options.model;
  probe.prefill_chunk = 16;
  const auto sizes = worker::load_served_model(probe);
  if (!sizes) {
    std::fprintf(stderr, "%s\n", sizes.error().message.c_str());
    return 1;
  }
  const ops::PageLayout layout = sizes->model->page_layout(Server::kBlock);
  const auto blocks = static_cast<size_t>(options.context / Server::kBlock + 1) *
                      static_cast<size_t>(layout.groups);
  const size_t bytes =
      (layout.page_bytes() + 63) / 64 * 64 * blocks * static_cast<size_t>(options.resident);
  double bandwidth = 0;
  std::vector<Curve> curves;
  for (const std::string& name : split(options.dtypes)) {
    const auto dtype = ops::parse_kv_dtype(name);
    ops::AlignedBytes memory = ops::allocate_aligned(bytes);
    if (!memory) return 1;
    std::memset(memory.get(), 1, bytes);
    if (bandwidth == 0) bandwidth = measure_bandwidth({memory.get(), bytes}, options.threads);
    auto server = dtype ? Server::create(options, *dtype, {memory.get(), bytes})
                        : make_error(400, "invalid_option", "unknown dtype " + name);
    if (!server) {
      std::fprintf(stderr, "%s\n", server.error().message.c_str());
      return 1;
    }
    const double context =
        (*server)->bytes_per_token() * Server::kBlock * static_cast<double>(blocks) / layout.groups;
    curves.push_back({.name = name,
                      .pool = std::move(memory),
                      .server = std::move(*server),
                      .capacity = static_cast<int32_t>(static_cast<double>(bytes) / context),
                      .rates = {}});
  }
  std::printf("pool %.2f GB, contexts of %d tokens, %d threads, memory read %.1f GB/s\n",
              static_cast<double>(bytes) * 1e-9, options.context, options.threads,
              bandwidth * 1e-9);
  std::printf("%-12s", "clients");
  for (const int32_t clients : points) std::printf(" %7d", clients);
  std::printf("\n");
  for (const Curve& curve : curves) {
    std::printf("%-12s", (curve.name + " limit").c_str());
    for (const int32_t clients : points)
      std::printf(" %7.1f", curve.predicted(clients, options.context, bandwidth));
    std::printf("   %d resident, %.0f bytes a token\n", curve.capacity,
                curve.server->bytes_per_token());
  }
  for (int32_t round = 0; round < options.rounds; ++round) {
    for (const int32_t clients : points) {
      for (Curve& curve : curves)
        curve.rates[clients].push_back(curve.server->measure(clients, curve.capacity));
    }
  }
  std::map<std::string, double> peaks;
  for (Curve& curve : curves) {
    std::printf("%-12s", curve.name.c_str());
    for (const int32_t clients : points) {
      const double rate = median(curve.rates[clients]);
      peaks[curve.name] = std::max(peaks[curve.name], rate);
      std::printf(" %7.1f", rate);
    }
    std::printf("   tokens/s, median of %d; %.0f preempted\n", options.rounds,
                curve.server->preemptions());
    if (curve.server->preemptions() > 0) return 1;
  }
  const double base = peaks[curves.front().name];
  for (const Curve& curve : curves)
    std::printf("peak of %s: %.1f tokens/s, %.2f of %s's\n", curve.name.c_str(), peaks[curve.name],
                peaks[curve.name] / base, curves.front().name.c_str());
  return 0;
}

int main_of(const std::vector<std::string>& arguments) {
  Options options;
  config::Options flags("bench_kv_dtype",
                        "Decode throughput over concurrency, by what KV pages hold.");
  flags.value(options.model, "model", "PATH", "a model file");
  flags.value(options.concurrency, "concurrency", "LIST", "clients at once");
  flags.value(options.dtypes, "dtypes", "LIST", "kinds of pages; gains are over the first");
  flags.value(options.context, "context", "N", "tokens of each context", 256, 1 << 20);
  flags.value(options.resident, "resident", "N", "contexts of BF16 pages that the pool holds", 1,
              1024);
  flags.value(options.tokens, "tokens", "N", "tokens of an answer, part of the context", 8,
              1 << 16);
  flags.value(options.threads, "threads", "N", "compute threads; 0: all cores", 0, 256);
  flags.value(options.rounds, "rounds", "N", "measurements of each point; the median counts", 1,
              99);
  flags.value(options.seconds, "seconds", "TIME", "length of a measurement");
  auto parsed = flags.parse(arguments);
  if (!parsed || parsed->help) {
    std::fputs(parsed ? parsed->help->c_str() : parsed.error().message.c_str(), stderr);
    return 2;
  }
  if (options.threads == 0)
    options.threads = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  return run(options);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::main_of({argv + 1, argv + argc}); }
