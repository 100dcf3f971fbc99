#include "engine/tokenizer_source.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "base/json_value.h"
#include "numerics/digest.h"
#include "text/base64.h"
#include "text/sentencepiece_model.h"
#include "text/tiktoken_file.h"
#include "text/tokenizer_json.h"

namespace tandem::engine {
namespace {

using text::TokenizerSpec;
using text::TokenType;
using weights::Checkpoint;
using weights::GgufFile;

// Control tokens that end a turn in some family, whatever the files say about eos.
constexpr std::array<std::string_view, 10> kTurnEnds = {
    "<|im_end|>",    "<|eot_id|>", "<|eom_id|>", "<|end|>",         "<end_of_turn>",
    "<|endoftext|>", "<|eot|>",    "<|return|>", "<|end_of_text|>", "<|call|>"};

bool is_type(const TokenizerSpec& spec, size_t id, TokenType type) {
  return id < spec.types.size() && spec.types[id] == static_cast<int32_t>(type);
}

int32_t find_token(const TokenizerSpec& spec, std::string_view spelling) {
  const auto found = std::ranges::find(spec.tokens, spelling);
  return found == spec.tokens.end() ? -1 : static_cast<int32_t>(found - spec.tokens.begin());
}

// What holds for every source: turn ends, and that what frames a conversation is a control token.
void finish(TokenizerSpec& spec) {
  if (spec.types.empty()) {
    spec.types.assign(spec.tokens.size(), static_cast<int32_t>(TokenType::kNormal));
  }
  const auto make_control = [&](int32_t id) {
    if (id < 0 || !is_type(spec, static_cast<size_t>(id), TokenType::kUserDefined)) return;
    spec.types[static_cast<size_t>(id)] = static_cast<int32_t>(TokenType::kControl);
  };
  make_control(spec.bos);
  make_control(spec.eos);
  // In the harmony format (gpt-oss) <|end|> ends a message, and the turn goes on.
  const bool messages =
      find_token(spec, "<|channel|>") >= 0 && find_token(spec, "<|message|>") >= 0;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!is_type(spec, id, TokenType::kControl) && !is_type(spec, id, TokenType::kUserDefined)) {
      continue;
    }
    if (std::ranges::find(kTurnEnds, spec.tokens[id]) == kTurnEnds.end()) continue;
    if (messages && spec.tokens[id] == "<|end|>") continue;
    make_control(static_cast<int32_t>(id));
    spec.end_of_generation.push_back(static_cast<int32_t>(id));
  }
  if (spec.eos >= 0) spec.end_of_generation.push_back(spec.eos);
  std::ranges::sort(spec.end_of_generation);
  const auto repeated = std::ranges::unique(spec.end_of_generation);
  spec.end_of_generation.erase(repeated.begin(), repeated.end());
}

// ---- GGUF ----

int32_t optional_id(const GgufFile& file, std::string_view key, size_t vocab) {
  if (file.find(key) == nullptr) return -1;
  const auto value = file.integer(key);
  return value && *value >= 0 && static_cast<size_t>(*value) < vocab ? static_cast<int32_t>(*value)
                                                                     : -1;
}

bool optional_flag(const GgufFile& file, std::string_view key, bool fallback) {
  if (file.find(key) == nullptr) return fallback;
  const auto value = file.boolean(key);
  return value && *value;
}

Result<std::string> charsmap_of(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.precompiled_charsmap";
  std::string bytes;
  if (file.find(kKey) == nullptr) return bytes;
  TANDEM_TRY(values, file.integers(kKey));
  bytes.reserve(values.size());
  for (const int64_t value : values) bytes.push_back(static_cast<char>(value));
  return bytes;
}

// SentencePiece options, as sentencepiece_model.cc writes them. `unigram` decides the defaults that
// converters leave out.
Status set_sentencepiece(const GgufFile& file, bool unigram, TokenizerSpec& spec) {
  const bool prefix = optional_flag(file, "tokenizer.ggml.add_space_prefix", true);
  const bool remove = optional_flag(file, "tokenizer.ggml.remove_extra_whitespaces", unigram);
  TANDEM_TRY(charsmap, charsmap_of(file));
  spec.normalizer = JsonValue::object();
  spec.normalizer.set("type", JsonValue::string("SentencePiece"));
  if (!charsmap.empty()) {
    spec.normalizer.set("charsmap", JsonValue::string(text::encode_base64(charsmap)));
  }
  spec.normalizer.set("add_dummy_prefix", JsonValue::boolean(prefix));
  spec.normalizer.set("remove_extra_whitespaces", JsonValue::boolean(remove));
  spec.single_precision = true;
  spec.fuse_unknown = true;
  spec.metaspace = true;
  spec.strip_leading_space = prefix;
  return {};
}

JsonValue replace_spaces() {
  JsonValue pattern = JsonValue::object();
  pattern.set("String", JsonValue::string(" "));
  JsonValue replace = JsonValue::object();
  replace.set("type", JsonValue::string("Replace"));
  replace.set("pattern", std::move(pattern));
  replace.set("content", JsonValue::string("\u2581"));
  return replace;
}

Status set_kind(const GgufFile& file, std::string_view model, TokenizerSpec& spec) {
  if (model == "gpt2") {
    spec.kind = "bpe";
    // As their own tokenizer.json does; no GGUF key says it.
    if (spec.pre == "qwen2" || spec.pre == "qwen35") {
      spec.normalizer = JsonValue::object();
      spec.normalizer.set("type", JsonValue::string("NFC"));
    }
    spec.whole_words = spec.pre == "llama-bpe" || spec.pre == "llama3" || spec.pre == "llama-v3" ||
                       spec.pre == "tekken" || spec.pre == "gpt-4o" || spec.pre == "llama4";
    return {};
  }
  if (model == "llama" || model == "t5") {
    spec.kind = model == "t5" ? "unigram" : "spm";
    return set_sentencepiece(file, model == "t5", spec);
  }
  if (model == "gemma4") {
    spec.kind = "char_bpe";
    spec.metaspace = true;
    spec.fuse_unknown = true;
    spec.normalizer = replace_spaces();
    return {};
  }
  return make_error(400, "unsupported_tokenizer",
                    "The model's tokenizer is \"" + std::string(model) +
                        "\"; supported are gpt2, llama, t5 and gemma4.");
}

Status read_vocabulary(const GgufFile& file, TokenizerSpec& spec) {
  TANDEM_TRY(tokens, file.strings("tokenizer.ggml.tokens"));
  spec.tokens.assign(tokens.begin(), tokens.end());
  if (file.find("tokenizer.ggml.merges") != nullptr) {
    TANDEM_TRY(merges, file.strings("tokenizer.ggml.merges"));
    spec.merges.assign(merges.begin(), merges.end());
  }
  if ((spec.kind == "spm" || spec.kind == "unigram") &&
      file.find("tokenizer.ggml.scores") != nullptr) {
    TANDEM_TRY(scores, file.reals("tokenizer.ggml.scores"));
    spec.scores.assign(scores.begin(), scores.end());
  }
  if (file.find("tokenizer.ggml.token_type") != nullptr) {
    TANDEM_TRY(types, file.integers("tokenizer.ggml.token_type"));
    if (types.size() != spec.tokens.size()) {
      return make_error(400, "invalid_model",
                        "tokenizer.ggml.token_type does not have one entry per token.");
    }
    for (const int64_t type : types) spec.types.push_back(static_cast<int32_t>(type));
  }
  return {};
}

Result<TokenizerSpec> spec_of_gguf(const GgufFile& file) {
  TokenizerSpec spec;
  TANDEM_TRY(model, file.string("tokenizer.ggml.model"));
  if (file.find("tokenizer.ggml.pre") != nullptr) {
    TANDEM_TRY(pre, file.string("tokenizer.ggml.pre"));
    spec.pre = std::string(pre);
  }
  TANDEM_CHECK(set_kind(file, model, spec));
  TANDEM_CHECK(read_vocabulary(file, spec));
  if (spec.normalizer.find("charsmap") != nullptr) {
    spec.normalizer.set("user_defined", text::user_defined_of(spec));
  }
  const size_t vocab = spec.tokens.size();
  spec.bos = optional_id(file, "tokenizer.ggml.bos_token_id", vocab);
  spec.eos = optional_id(file, "tokenizer.ggml.eos_token_id", vocab);
  spec.unknown = optional_id(file, "tokenizer.ggml.unknown_token_id", vocab);
  spec.pad = optional_id(file, "tokenizer.ggml.padding_token_id", vocab);
  spec.add_bos = optional_flag(file, "tokenizer.ggml.add_bos_token", spec.kind == "spm");
  spec.add_eos = optional_flag(file, "tokenizer.ggml.add_eos_token", spec.kind == "unigram");
  // A byte-level vocabulary has every byte; what it calls unknown is never made from text.
  if (spec.kind == "bpe") spec.unknown = -1;
  for (const int32_t id : {optional_id(file, "tokenizer.ggml.eot_token_id", vocab),
                           optional_id(file, "tokenizer.ggml.eom_token_id", vocab)}) {
    if (id >= 0) spec.end_of_generation.push_back(id);
  }
  if (file.find("tokenizer.chat_template") != nullptr) {
    TANDEM_TRY(source, file.string("tokenizer.chat_template"));
    spec.chat_template = std::string(source);
  }
  if (file.find("tokenizer.chat_template.tool_use") != nullptr) {
    TANDEM_TRY(source, file.string("tokenizer.chat_template.tool_use"));
    spec.tool_template = std::string(source);
  }
  return spec;
}

// ---- A directory in Hugging Face's layout ----

// A token's spelling: a string, or an object with "content".
std::optional<std::string> spelling_of(const JsonValue* value) {
  if (value != nullptr && value->is_object()) value = value->find("content");
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return value->as_string();
}

// Tokens by id from tokenizer_config.json's added_tokens_decoder.
std::vector<std::pair<int32_t, std::string>> added_tokens(const JsonValue* config) {
  std::vector<std::pair<int32_t, std::string>> tokens;
  const JsonValue* decoder = config == nullptr ? nullptr : config->find("added_tokens_decoder");
  if (decoder == nullptr) return tokens;
  for (const auto& [key, value] : decoder->members()) {
    int32_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    const auto spelling = spelling_of(&value);
    if (parsed.ec == std::errc() && id >= 0 && spelling) tokens.emplace_back(id, *spelling);
  }
  return tokens;
}

Result<TokenizerSpec> vocabulary_of(const Checkpoint& checkpoint) {
  if (const JsonValue* json = checkpoint.json("tokenizer.json")) {
    return text::tokenizer_spec_of_tokenizer_json(*json);
  }
  if (const JsonValue* json = checkpoint.json("tekken.json")) {
    return text::tokenizer_spec_of_tekken(*json);
  }
  const auto added = added_tokens(checkpoint.json("tokenizer_config.json"));
  if (const auto file = checkpoint.text("tokenizer.model")) {
    TANDEM_TRY(spec, text::tokenizer_spec_of_sentencepiece(*file));
    spec.add_bos = true;
    for (const auto& [id, spelling] : added) {
      const auto i = static_cast<size_t>(id);
      if (i >= spec.tokens.size()) {
        if (i > spec.tokens.size() + 65536) continue;
        spec.tokens.resize(i + 1);
        spec.types.resize(i + 1, static_cast<int32_t>(TokenType::kUnused));
        spec.scores.resize(i + 1, 0);
      } else if (is_type(spec, i, TokenType::kUnknown)) {
        continue;
      }
      spec.tokens[i] = spelling;
      spec.types[i] = static_cast<int32_t>(TokenType::kControl);
    }
    return spec;
  }
  if (const auto file = checkpoint.text("tiktoken.model")) {
    return text::tokenizer_spec_of_tiktoken(*file, "kimi-k2", added);
  }
  return make_error(400, "invalid_model",
                    "The model's directory has no tokenizer.json, tekken.json, tokenizer.model or "
                    "tiktoken.model.");
}

void read_config(const JsonValue* config, TokenizerSpec& spec) {
  if (config == nullptr) return;
  const std::pair<const char*, int32_t*> names[] = {
      {"bos_token", &spec.bos}, {"eos_token", &spec.eos}, {"pad_token", &spec.pad}};
  for (const auto& [key, id] : names) {
    const auto spelling = spelling_of(config->find(key));
    if (!spelling) continue;
    if (const int32_t found = find_token(spec, *spelling); found >= 0) *id = found;
  }
  // tokenizer.json's post-processor has the last word on what is added; these flags are written
  // from it, or stand in for it where a class of the reference library overrides it.
  const JsonValue* add_bos = config->find("add_bos_token");
  if (add_bos != nullptr && add_bos->is_bool()) spec.add_bos = add_bos->as_bool();
}

void read_generation_config(const JsonValue* config, TokenizerSpec& spec) {
  const JsonValue* eos = config == nullptr ? nullptr : config->find("eos_token_id");
  if (eos == nullptr) return;
  const auto add = [&](const JsonValue& value) {
    const auto id = value.as_integer();
    if (!id || *id < 0 || *id >= static_cast<int64_t>(spec.tokens.size())) return;
    spec.end_of_generation.push_back(static_cast<int32_t>(*id));
    if (spec.eos < 0) spec.eos = static_cast<int32_t>(*id);
  };
  if (eos->is_array()) {
    for (size_t i = 0; i < std::min<size_t>(eos->items().size(), 256); ++i) add(eos->items()[i]);
  } else {
    add(*eos);
  }
}

void read_templates(const Checkpoint& checkpoint, TokenizerSpec& spec) {
  const JsonValue* config = checkpoint.json("tokenizer_config.json");
  const JsonValue* value = config == nullptr ? nullptr : config->find("chat_template");
  if (value != nullptr && value->is_string()) spec.chat_template = value->as_string();
  if (value != nullptr && value->is_array()) {
    for (const JsonValue& item : value->items()) {
      const auto name = spelling_of(item.find("name"));
      const auto source = spelling_of(item.find("template"));
      if (!name || !source) continue;
      if (*name == "default") spec.chat_template = *source;
      if (*name == "tool_use") spec.tool_template = *source;
    }
  }
  if (auto source = checkpoint.text("chat_template.jinja")) spec.chat_template = std::move(*source);
  if (auto source = checkpoint.text("additional_chat_templates/tool_use.jinja")) {
    spec.tool_template = std::move(*source);
  }
}

Result<TokenizerSpec> spec_of_directory(const Checkpoint& checkpoint) {
  TANDEM_TRY(spec, vocabulary_of(checkpoint));
  read_config(checkpoint.json("special_tokens_map.json"), spec);
  read_config(checkpoint.json("tokenizer_config.json"), spec);
  read_generation_config(checkpoint.json("generation_config.json"), spec);
  read_templates(checkpoint, spec);
  return std::move(spec);
}

}  // namespace

Result<TokenizerSpec> tokenizer_spec_of(const Checkpoint& checkpoint) {
  TANDEM_TRY(spec, checkpoint.is_gguf() ? spec_of_gguf(*checkpoint.gguf())
                                        : spec_of_directory(checkpoint));
  finish(spec);
  return std::move(spec);
}

std::string lineage_of(const Checkpoint& checkpoint) {
  return numerics::to_hex(checkpoint.digest());
}

}  // namespace tandem::engine
