#include "cli/common.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cli/commands.h"
#include "hub/model_name.h"
#include "observe/log.h"
#include "protocol/representation.h"

namespace tandem::cli {

int report(const Error& error) {
  std::fprintf(stderr, "tandem: %s\n", error.message.c_str());
  return error.code == "invalid_option" || error.code == "invalid_config" ? 2 : 1;
}

WorkerFlags::WorkerFlags() : models_directory(hub::default_models_directory()) {}

Status WorkerFlags::find_model() {
  TANDEM_TRY(found, hub::find_model(model, models_directory));
  model = std::move(found.path);
  if (name.empty()) name = std::move(found.name);
  return {};
}

void WorkerFlags::declare(config::Options& options, bool model_required) {
  options.positional(
      model, "MODEL",
      "path of a GGUF file or of a Hugging Face directory, ORG/NAME[:FILE] of a pulled "
      "model, or scripted:FILE (a script that answers, for tests)",
      model_required);
  options.value(name, "served-model-name", "NAME", "id in /v1/models; else the file's name");
  options.choice(numerics, "numerics", model::kNumericsWords,
                 "fast: quantized activations; exact: float32, for references; bf16: weights as "
                 "BF16, several times the memory, for prompts on machines with AMX, or AVX-512 on "
                 "AMD");
  std::vector<std::string> words = {"same"};
  words.insert(words.end(), model::kNumericsWords.begin(), model::kNumericsWords.end());
  options.choice(prompt_numerics, "prompt-numerics", words,
                 "--numerics of prompts: of a prefill worker's model, whose KV decode workers then "
                 "take; a unified worker holds the weights twice");
  options.choice(
      kv_dtype, "kv-dtype", kKvDtypeWords,
      "what KV pages hold; auto: bf16, or f32 with exact numerics. fp8 (half of bf16) has "
      "the checkpoint's scales, or none; fp8-inline and int8 a scale for each token and head");
  options.list(kv_accept, "kv-accept", "WORD",
               "KV of other workers that a decode worker takes although it would have computed "
               "another: coarser (more rounded, such as fp8 for bf16), weights (of the same "
               "--kv-lineage), path (another instruction set or numerics)");
  options.value(threads, "threads", "N",
                "compute threads of a worker; 0: this machine's cores shared between its workers",
                0, 256);
  options.value(kv_memory, "kv-memory", "SIZE", "memory for KV pages, for each worker");
  options.value(block_tokens, "block-tokens", "N",
                "tokens in a KV page; a multiple of 8, the same on all workers", 8, 256);
  options.value(prefill_chunk, "prefill-chunk", "N",
                "prompt tokens computed in one pass; 0: whole prompts", 0, 1 << 20);
  options.value(
      prompt_patience, "prompt-patience", "N",
      "shorter prompts go first, but not before a prompt that has waited while N times as "
      "many tokens as it needs were computed; 0: first come, first served",
      0, 1 << 20);
  options.value(max_sequences, "max-sequences", "N", "sequences decoded at once in a worker", 1,
                4096);
  options.value(steps_in_flight, "steps-in-flight", "N", "passes planned ahead of their results", 1,
                4);
  options.value(
      lineage, "kv-lineage", "ID",
      "source revision of the weights, for the identity of cached KV; else the file's digest");
  options.list(adapters, "adapter", "NAME=PATH",
               "LoRA adapters (PEFT directories or GGUF files), each served under its name");
  options.choice(pooling, "embedding-pooling", {"mean", "last"},
                 "how the tokens' states become one vector, unless a request says");
  options.value(
      tool_parser, "tool-parser", "NAME",
      "how the model's calls of tools are read: auto (by its template), none, or a family: "
      "hermes, qwen3_xml, glm, kimi_k2, kimi_k3, deepseek_v3, deepseek_v32, llama3_json, "
      "llama4_pythonic, mistral, gemma4, harmony, smollm2");
  options.value(reasoning_parser, "reasoning-parser", "NAME",
                "how its reasoning is told from its answer: auto, none, or a family");
  options.choice(
      kv_integrity, "kv-integrity", {"off", "tags", "full"},
      "what is checked of KV pages: tags: before each pass, that every page is the one "
      "its sequence expects; full: also the bytes, on hits, transfers and by a scrubber");
  options.value(kv_integrity_sample, "kv-integrity-sample", "N",
                "with full: one in N pages that a cache hit brings is compared", 1, 1 << 20);
  options.value(kv_fault, "kv-fault", "NAME[:AFTER]", "a fault to plant, for tests");
  options.hide("kv-fault");
  options.value(models_directory, "models-dir", "DIR",
                "where `tandem pull` keeps models; also TANDEM_MODELS in the environment");
  options.value(drain, "drain-timeout", "TIME",
                "how long running requests may go on after SIGTERM");
  options.choice(log_level, "log-level", {"debug", "info", "warning", "error", "off"},
                 "what the log says on stderr");
}

std::vector<std::string> WorkerFlags::words() const {
  std::vector<std::string> out = {
      model,
      "--numerics",
      numerics,
      "--prompt-numerics",
      prompt_numerics,
      "--kv-dtype",
      kv_dtype,
      "--threads",
      std::to_string(threads),
      "--kv-memory",
      std::to_string(kv_memory.value),
      "--block-tokens",
      std::to_string(block_tokens),
      "--prefill-chunk",
      std::to_string(prefill_chunk),
      "--prompt-patience",
      std::to_string(prompt_patience),
      "--max-sequences",
      std::to_string(max_sequences),
      "--steps-in-flight",
      std::to_string(steps_in_flight),
      "--embedding-pooling",
      pooling,
      "--tool-parser",
      tool_parser,
      "--reasoning-parser",
      reasoning_parser,
      "--kv-integrity",
      kv_integrity,
      "--kv-integrity-sample",
      std::to_string(kv_integrity_sample),
      "--drain-timeout",
      std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(drain).count()) + "ms",
      "--log-level",
      log_level};
  if (!adapters.empty()) {
    out.push_back("--adapter");
    out.insert(out.end(), adapters.begin(), adapters.end());
  }
  if (!kv_accept.empty()) {
    out.push_back("--kv-accept");
    out.insert(out.end(), kv_accept.begin(), kv_accept.end());
  }
  if (!kv_fault.empty()) out.insert(out.end(), {"--kv-fault", kv_fault});
  if (!name.empty()) out.insert(out.end(), {"--served-model-name", name});
  if (!lineage.empty()) out.insert(out.end(), {"--kv-lineage", lineage});
  return out;
}

Result<worker::WorkerOptions> WorkerFlags::worker_options(worker::Role role) const {
  observe::set_log_level(log_level);
  if (block_tokens % 8 != 0)
    return make_error(400, "invalid_option", "--block-tokens: it must be a multiple of 8.");
  worker::WorkerOptions options;
  options.model.model = model;
  options.model.name = name;
  options.role = role;
  options.model.numerics = model::numerics_of(numerics);
  const model::Numerics prompts =
      prompt_numerics == "same" ? options.model.numerics : model::numerics_of(prompt_numerics);
  const bool apart = prompts != options.model.numerics;
  // A pair's pages are alike, whatever computes them.
  options.model.kv_dtype = kv_dtype_of(kv_dtype);
  if (!options.model.kv_dtype && apart)
    options.model.kv_dtype = model::default_kv_dtype(options.model.numerics);
  if (role == worker::Role::kPrefill) options.model.numerics = prompts;
  if (role == worker::Role::kUnified && apart) options.model.prompt_numerics = prompts;
  TANDEM_TRY(accepts, protocol::parse_kv_accepts(kv_accept));
  options.kv_accepts = accepts;
  if (role == worker::Role::kDecode && apart) options.kv_accepts |= protocol::kAcceptPath;
  options.model.threads =
      threads > 0 ? threads
                  : static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  options.model.lineage = lineage;
  options.model.parsers = {tool_parser, reasoning_parser};
  for (const std::string& text : adapters) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      return make_error(400, "invalid_option", "--adapter: \"" + text + "\" is not NAME=PATH.");
    options.model.adapters.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  options.kv_bytes = kv_memory.value;
  options.block_tokens = block_tokens;
  options.prefill_chunk = prefill_chunk;
  options.prompt_patience = prompt_patience;
  options.max_sequences = max_sequences;
  options.steps_in_flight = steps_in_flight;
  options.drain = drain;
  options.pooling = pooling == "mean" ? protocol::Pooling::kMean : protocol::Pooling::kLast;
  TANDEM_TRY(level, kv::parse_integrity(kv_integrity));
  TANDEM_TRY(faults, kv::parse_kv_fault(kv_fault));
  options.integrity = {.level = level, .sample = kv_integrity_sample, .faults = faults};
  options.secret = shared_secret();
  return options;
}

Status check_pair_secret(bool pair) {
  if (!pair || !shared_secret().empty()) return {};
  return make_error(400, "no_secret",
                    "Prefill and decode workers and their router need the same secret in "
                    "TANDEM_SECRET, for example: export TANDEM_SECRET=$(openssl rand -hex 16)");
}

std::string shared_secret() {
  const char* secret = std::getenv("TANDEM_SECRET");
  return secret == nullptr ? "" : secret;
}

namespace {
sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);  // ends the waiting thread
  return set;
}
}  // namespace

Signals::Signals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void Signals::on_signal(std::function<void()> action) {
  action_ = std::move(action);
  thread_ = std::thread([this] {
    const sigset_t set = stop_signals();
    bool seen = false;
    while (true) {
      int signal = 0;
      if (sigwait(&set, &signal) != 0 || ending_) return;
      if (signal == SIGUSR1) continue;  // another's: SIGTERM must still be heard
      if (seen) _exit(130);
      seen = true;
      action_();
    }
  });
}

Signals::~Signals() {
  if (!thread_.joinable()) return;
  ending_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void print_budget(const std::vector<BudgetLine>& lines) {
  std::printf("memory          weights   activations   KV pages    of       KV tokens\n");
  model::MemoryBudget total;
  for (const auto& [name, memory, url] : lines) {
    std::printf("%-12s %10s    %10s %10s  %-10s %10lld%s%s\n", name.c_str(),
                format_bytes(memory.weights).c_str(), format_bytes(memory.activations).c_str(),
                format_bytes(memory.kv).c_str(),
                std::string(ops::kv_dtype_name(memory.kv_dtype)).c_str(),
                static_cast<long long>(memory.tokens), url.empty() ? "" : "  ", url.c_str());
    total.weights += memory.weights;
    total.activations += memory.activations;
    total.kv += memory.kv;
  }
  std::printf("%-12s %10s\n", "all",
              format_bytes(total.weights + total.activations + total.kv).c_str());
  std::fflush(stdout);
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace tandem::cli
