#include "worker/served_model.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <map>
#include <system_error>
#include <utility>

#include "engine/scripted_model.h"
#include "engine/tokenizer_source.h"
#include "model/memory_budget.h"
#include "model/registry.h"
#include "numerics/digest.h"
#include "weights/checkpoint.h"

namespace tandem::worker {
namespace {

constexpr std::string_view kScripted = "scripted:";

// A file's name without its ending, or a directory's.
std::string default_name(const std::string& path) {
  const std::filesystem::path plain = std::filesystem::absolute(path).lexically_normal();
  const std::filesystem::path file = plain.has_filename() ? plain : plain.parent_path();
  for (const char* ending : {".gguf", ".safetensors", ".json"}) {
    if (file.extension() == ending) return file.stem().string();
  }
  return file.filename().string();
}

// The tokenizer, the chat template and how replies are read.
Status make_text(text::TokenizerSpec spec, const api::ParserNames& parsers, ServedModel& served) {
  const std::string source = spec.chat_template;
  const std::string with_tools = spec.tool_template;
  served.tokenizer_identity = text::tokenizer_identity(spec);
  TANDEM_TRY(tokenizer, text::Tokenizer::create(std::move(spec)));
  served.tokenizer = std::move(tokenizer);
  if (!source.empty()) {
    TANDEM_TRY(parsed, text::ChatTemplate::parse(source, with_tools));
    served.chat_template = std::move(parsed);
  }
  TANDEM_TRY(format, api::ReplyFormat::create(parsers, source + with_tools, *served.tokenizer));
  served.format = std::move(format);
  return {};
}

// Makes the text side on a thread of its own, if there can be one: it takes as long as packing a
// small model. What it fills of `served` must not be touched before the result is there.
std::future<Status> start_text(text::TokenizerSpec spec, const api::ParserNames& parsers,
                               ServedModel& served) {
  auto shared = std::make_shared<text::TokenizerSpec>(std::move(spec));
  const auto make = [shared, &parsers, &served] {
    return make_text(std::move(*shared), parsers, served);
  };
  try {
    return std::async(std::launch::async, make);
  } catch (const std::system_error&) {
    return std::async(std::launch::deferred, make);
  }
}

// The lineage gets each adapter's name and digest: workers whose adapters differ never share KV.
Status load_adapters(std::vector<AdapterSource> adapters, ServedModel& served) {
  std::sort(adapters.begin(), adapters.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const AdapterSource& adapter : adapters) {
    if (adapter.name == served.name) {
      return make_error(400, "adapter_exists",
                        "The adapter \"" + adapter.name + "\" has the model's own name.");
    }
    TANDEM_CHECK(served.model->load_adapter(adapter.name, adapter.path));
    TANDEM_TRY(file, weights::Checkpoint::open(adapter.path));
    served.lineage += "/" + adapter.name + "=" + engine::lineage_of(file);
    served.adapters.push_back(adapter.name);
  }
  return {};
}

std::string weights_format(const weights::Checkpoint& checkpoint) {
  std::map<weights::Format, size_t> bytes;
  for (const weights::Tensor& tensor : checkpoint.tensors())
    bytes[tensor.format] += tensor.bytes.size();
  const auto most =
      std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; });
  return most == bytes.end() ? "" : std::string(weights::format_name(most->first));
}

}  // namespace

Result<ServedModel> load_served_model(const ServedModelOptions& options) {
  ServedModel served;
  const bool scripted = options.model.starts_with(kScripted);
  std::string path = scripted ? options.model.substr(kScripted.size()) : options.model;
  served.name = options.name.empty() ? default_name(path) : options.name;
  engine::Script script;
  if (scripted) {
    TANDEM_TRY(read, engine::read_script(path));
    script = std::move(read);
    path = script.tokenizer;
  }
  TANDEM_TRY(checkpoint, weights::Checkpoint::open(path));
  TANDEM_TRY(text_spec, engine::tokenizer_spec_of(checkpoint));
  if (!script.chat_template.empty()) text_spec.chat_template = script.chat_template;
  std::future<Status> text = start_text(std::move(text_spec), options.parsers, served);
  served.weights = scripted ? "scripted" : weights_format(checkpoint);
  served.lineage = !options.lineage.empty() ? options.lineage : engine::lineage_of(checkpoint);
  if (scripted) {
    TANDEM_CHECK(text.get());
    served.lineage += "/" + options.model;
    served.prefill_chunk =
        options.prefill_chunk > 0 ? options.prefill_chunk : script.context_length;
    served.model = engine::make_scripted_model(std::move(script), served.tokenizer,
                                               served.prefill_chunk + options.max_sequences);
    TANDEM_CHECK(load_adapters(options.adapters, served));
    return served;
  }
  const ops::KvDtype kv_dtype =
      options.kv_dtype.value_or(model::default_kv_dtype(options.numerics));
  TANDEM_TRY(pages, model::read_model_pages(checkpoint, kv_dtype, options.block_tokens));
  int32_t context = pages.config.context_length;
  served.prefill_chunk = options.prefill_chunk > 0 ? options.prefill_chunk : context;
  if (options.kv_bytes > 0) {
    TANDEM_TRY(budget, model::plan_memory({}, pages.layout, options.kv_bytes,
                                          {.groups = pages.groups,
                                           .pass_tokens = served.prefill_chunk,
                                           .min_tokens = int64_t{4} * options.block_tokens}));
    context = static_cast<int32_t>(std::min<int64_t>(context, budget.tokens));
  }
  TANDEM_TRY(loaded, model::load_model(std::move(checkpoint),
                                       {.numerics = options.numerics,
                                        .prompt_numerics = options.prompt_numerics,
                                        .threads = options.threads,
                                        .max_rows = served.prefill_chunk + options.max_sequences,
                                        .served_context = context,
                                        .kv_dtype = kv_dtype,
                                        .isa = ""}));
  served.model = std::move(loaded);
  TANDEM_CHECK(text.get());
  if (served.tokenizer->vocab_size() > served.model->config().vocab) {
    return make_error(400, "invalid_model",
                      "The tokenizer has more tokens than the model's embedding has rows.");
  }
  TANDEM_CHECK(load_adapters(options.adapters, served));
  return served;
}

}  // namespace tandem::worker
