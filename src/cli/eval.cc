// `tandem eval`: how good a model is. One declaration of options and one run for each kind.
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "cli/commands.h"
#include "cli/common.h"
#include "config/options.h"
#include "eval/divergence.h"
#include "eval/perplexity.h"
#include "eval/questions.h"
#include "hub/model_name.h"
#include "observe/log.h"
#include "worker/served_model.h"

namespace tandem::cli {
namespace {

// What every kind takes.
struct Common {
  std::string model;
  std::string numerics = "fast";
  std::string kv_dtype = "auto";
  int32_t threads = 0;
  int32_t limit = 0;
  std::string resume;

  void declare(config::Options& options, const char* limited) {
    options.value(model, "model", "PATH",
                  "the model, run in this process: a path, ORG/NAME[:FILE] or scripted:FILE");
    options.choice(numerics, "numerics", model::kNumericsWords,
                   "fast: quantized activations; exact: float32");
    options.choice(kv_dtype, "kv-dtype", kKvDtypeWords,
                   "what KV pages hold; auto: bf16, or f32 with exact numerics");
    options.value(threads, "threads", "N", "compute threads; 0: all cores", 0, 256);
    options.value(limit, "limit", "N", limited, 0, 1 << 30);
    options.value(resume, "resume", "FILE",
                  "keeps finished parts in FILE and takes those it finds there");
  }
  int32_t thread_count() const {
    return threads > 0 ? threads
                       : static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  }
  Result<eval::LoadedModel> load(int32_t prefill_chunk, int32_t max_sequences) const {
    if (model.empty()) return make_error(400, "invalid_option", "--model is missing.");
    observe::set_log_level("warning");
    worker::ServedModelOptions options;
    TANDEM_TRY(found, hub::find_model(model, hub::default_models_directory()));
    options.model = found.path;
    options.name = found.name;
    options.numerics = model::numerics_of(numerics);
    options.kv_dtype = kv_dtype_of(kv_dtype);
    options.threads = thread_count();
    options.prefill_chunk = prefill_chunk;
    options.max_sequences = max_sequences;
    TANDEM_TRY(served, worker::load_served_model(options));
    return eval::LoadedModel{std::move(served.model), std::move(served.tokenizer),
                             std::move(served.chat_template), served.name, served.lineage};
  }
};

void declare_text(config::Options& options, eval::TextOptions& text) {
  options.positional(text.path, "TEXT", "a text file");
  options.value(text.window, "window", "N", "tokens of each window", 2, 1 << 20);
  options.value(text.stride, "stride", "N",
                "tokens between the starts of windows; 0: windows do not overlap", 0, 1 << 20);
}

// Shows the help, or runs and prints the summary.
int finish(const Result<config::Options::Parsed>& parsed,
           const std::function<Result<JsonValue>()>& run) {
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  const auto summary = run();
  if (!summary) return report(summary.error());
  std::printf("%s\n", summary->dump().c_str());
  return 0;
}

constexpr int32_t kChunk = 512;

int run_perplexity(const Arguments& arguments) {
  config::Options options("eval perplexity", "Perplexity of a model over a text.");
  Common common;
  eval::PerplexityOptions perplexity;
  declare_text(options, perplexity.text);
  common.declare(options, "tokens of the text to take; 0: all");
  options.example("tandem eval perplexity wiki.txt --model models/smollm2-135m-instruct.Q4_1.gguf");
  return finish(options.parse(arguments), [&]() -> Result<JsonValue> {
    perplexity.text.limit = common.limit;
    perplexity.text.threads = common.thread_count();
    perplexity.journal = common.resume;
    TANDEM_TRY(loaded, common.load(kChunk, 1));
    return eval::run_perplexity(loaded, perplexity);
  });
}

int run_kl(const Arguments& arguments) {
  config::Options options(
      "eval kl", "How far a model's distributions over a text are from those of a reference run.");
  Common common;
  eval::SaveReferenceOptions save;
  eval::DivergenceOptions compare;
  declare_text(options, save.text);
  options.value(save.file, "save-reference", "FILE",
                "makes this run the reference (a file that was begun is gone on with)");
  options.value(save.top, "top", "N",
                "with --save-reference: how many of the likeliest tokens of a position are kept; "
                "0: all",
                0, 1 << 30);
  options.value(compare.file, "reference", "FILE", "compares with this reference");
  common.declare(options, "with --save-reference: tokens of the text to take; 0: all");
  options.example("tandem eval kl wiki.txt --model m.gguf --numerics exact --save-reference m.ref");
  options.example("tandem eval kl wiki.txt --model m.gguf --reference m.ref");
  return finish(options.parse(arguments), [&]() -> Result<JsonValue> {
    if (save.file.empty() == compare.file.empty())
      return make_error(400, "invalid_option", "Give one of --save-reference and --reference.");
    TANDEM_TRY(loaded, common.load(kChunk, 1));
    if (!save.file.empty()) {
      save.text.limit = common.limit;
      save.text.threads = common.thread_count();
      return eval::save_reference(loaded, save);
    }
    compare.text = save.text.path;
    compare.threads = common.thread_count();
    compare.journal = common.resume;
    return eval::run_divergence(loaded, compare);
  });
}

// "\n" and "\t" as a shell passes them.
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool escape = text[i] == '\\' && (next == 'n' || next == 't' || next == '\\');
    out += !escape ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    i += escape ? 1 : 0;
  }
  return out;
}

// What qa and choice share: data, and where answers come from.
struct DataFlags {
  Common common;
  eval::DataOptions data;
  eval::Server server;
  std::string served_name;
  std::string format = R"(Question: {question}\nAnswer:)";
  std::string seed;

  void declare(config::Options& options) {
    options.positional(data.data, "DATA", "JSON lines, one item in each");
    common.declare(options, "items; 0: all");
    options.value(server.url, "url", "URL", "asks this OpenAI-compatible server, without --model");
    options.value(server.model, "served-model", "NAME", "model to ask the server for");
    options.value(server.api_key, "api-key", "KEY", "sent as Authorization: Bearer KEY");
    options.value(server.parallel, "parallel", "N", "questions asked at once", 1, 1024);
    options.value(data.few_shot, "few-shot", "FILE", "JSON lines whose first items are examples");
    options.value(data.shots, "shots", "N", "how many of them", 0, 1000);
    options.value(format, "format", "TEXT",
                  "how a question is asked in plain text; \\n is a new line");
    options.value(seed, "seed", "N",
                  "draws the items of --limit at random; also the seed of sampling");
  }
  Status settle() {
    if (common.model.empty() == server.url.empty())
      return make_error(400, "invalid_option", "Give one of --model and --url.");
    data.limit = common.limit;
    data.journal = common.resume;
    data.format = unescape(format);
    if (!seed.empty()) {
      const auto number = parse_json(seed);
      const auto value = number && number->is_number() ? number->as_integer() : std::nullopt;
      if (!value || *value < 0)
        return make_error(400, "invalid_option", "--seed: it must be a whole number from 0.");
      data.seed = static_cast<uint64_t>(*value);
    }
    data.identity = JsonValue::object();
    return {};
  }
  void identify(const eval::LoadedModel& loaded) {
    data.identity.set("model", JsonValue::string(loaded.name));
    data.identity.set("weights", JsonValue::string(loaded.lineage));
    data.identity.set("numeric_path", JsonValue::string(loaded.model->numeric_path()));
  }
  void identify_server() {
    data.identity.set("url", JsonValue::string(server.url));
    data.identity.set("model", JsonValue::string(server.model));
  }
};

int run_qa(const Arguments& arguments) {
  config::Options options("eval qa",
                          "Lets a model answer the questions of a data set such as GSM8K: "
                          "{\"question\": text, \"answer\": text with \"#### NUMBER\"}.");
  DataFlags flags;
  eval::QaOptions qa;
  config::Bytes kv_memory{size_t{1} << 30};
  std::string temperature = "0";
  flags.declare(options);
  options.flag(qa.chat, "chat", "asks through the chat template, examples as earlier turns");
  options.value(qa.system, "system", "TEXT", "with --chat: the system message");
  options.value(qa.generation.max_tokens, "max-tokens", "N", "longest answer", 1, 1 << 20);
  options.value(temperature, "temperature", "T", "0 is greedy");
  options.value(kv_memory, "kv-memory", "SIZE", "with --model: memory for KV pages");
  options.example("tandem eval qa gsm8k.jsonl --model m.gguf --few-shot train.jsonl --limit 100");
  options.example("tandem eval qa gsm8k.jsonl --url http://127.0.0.1:8000 --chat");
  return finish(options.parse(arguments), [&]() -> Result<JsonValue> {
    TANDEM_CHECK(flags.settle());
    const auto number = parse_json(temperature);
    if (!number || !number->is_number() || number->as_double().value_or(-1) < 0)
      return make_error(400, "invalid_option", "--temperature: it must be a number from 0.");
    qa.generation.temperature = *number->as_double();
    qa.generation.seed = flags.data.seed.value_or(0);
    qa.parallel = flags.server.parallel;
    if (!qa.chat) qa.generation.stop = {"\nQuestion:", "\n\n\n"};
    std::unique_ptr<eval::Generator> generator;
    if (!flags.server.url.empty()) {
      flags.identify_server();
      TANDEM_TRY(made, eval::make_server_generator(flags.server));
      generator = std::move(made);
    } else {
      constexpr int32_t kPrefillChunk = 256;
      TANDEM_TRY(loaded, flags.common.load(kPrefillChunk, qa.parallel));
      flags.identify(loaded);
      TANDEM_TRY(made, eval::make_local_generator(std::move(loaded), kv_memory.value, kPrefillChunk,
                                                  qa.parallel));
      generator = std::move(made);
    }
    qa.data = flags.data;
    return eval::run_qa(*generator, qa);
  });
}

int run_choice(const Arguments& arguments) {
  config::Options options("eval choice",
                          "Scores the choices of a data set by their log-likelihood: "
                          "{\"question\": text, \"choices\": [text, ...], \"answer\": index}.");
  DataFlags flags;
  flags.declare(options);
  options.example("tandem eval choice arc.jsonl --model m.gguf --resume arc.done");
  options.example("tandem eval choice hellaswag.jsonl --model m.gguf --format '{question}'");
  return finish(options.parse(arguments), [&]() -> Result<JsonValue> {
    TANDEM_CHECK(flags.settle());
    if (!flags.server.url.empty()) {
      flags.identify_server();
      TANDEM_TRY(scorer, eval::make_server_scorer(flags.server));
      return eval::run_choice(*scorer, flags.data);
    }
    TANDEM_TRY(loaded, flags.common.load(kChunk, 1));
    flags.identify(loaded);
    TANDEM_TRY(scorer, eval::make_local_scorer(loaded));
    return eval::run_choice(*scorer, flags.data);
  });
}

struct Kind {
  std::string_view name;
  const char* summary;
  int (*run)(const Arguments&);
};
constexpr Kind kKinds[] = {
    {"perplexity", "perplexity over a text", run_perplexity},
    {"kl", "divergence from a reference run over a text", run_kl},
    {"qa", "answers that the model writes, GSM8K-style", run_qa},
    {"choice", "choices that the model ranks", run_choice},
};

}  // namespace

int run_eval(const Arguments& arguments) {
  const std::string_view name = arguments.empty() ? std::string_view() : arguments.front();
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind.run(Arguments(arguments.begin() + 1, arguments.end()));
  }
  const bool help = name == "--help" || name == "-h" || name == "help";
  std::FILE* out = help ? stdout : stderr;
  if (!help && !name.empty())
    std::fprintf(out, "tandem: there is no eval \"%s\"\n\n", arguments.front().c_str());
  std::fputs(
      "Measures how good a model is. Progress goes to stderr, one JSON summary to stdout.\n\n"
      "Usage: tandem eval KIND [OPTIONS]\n\nKinds:\n",
      out);
  for (const Kind& kind : kKinds)
    std::fprintf(out, "  %-10.*s  %s\n", static_cast<int>(kind.name.size()), kind.name.data(),
                 kind.summary);
  std::fputs(
      "\n`tandem eval KIND --help` shows its options; --config FILE reads them from TOML.\n\n"
      "Examples:\n  tandem eval perplexity wiki.txt --model m.gguf\n",
      out);
  return help ? 0 : 2;
}

}  // namespace tandem::cli
