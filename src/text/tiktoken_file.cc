#include "text/tiktoken_file.h"

#include <array>
#include <charconv>
#include <string>

#include "text/base64.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {

constexpr size_t kMaxTokens = 1 << 21;

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_tokenizer", std::move(message));
}

Status set_token(TokenizerSpec& spec, int64_t id, std::string spelling, TokenType type) {
  if (id < 0 || id >= static_cast<int64_t>(kMaxTokens)) return invalid("a token's id is too big");
  const auto i = static_cast<size_t>(id);
  if (i >= spec.tokens.size()) {
    spec.tokens.resize(i + 1);
    spec.types.resize(i + 1, static_cast<int32_t>(TokenType::kUnused));
  }
  spec.tokens[i] = std::move(spelling);
  spec.types[i] = static_cast<int32_t>(type);
  return {};
}

std::array<std::string, 256> make_printable() {
  std::array<std::string, 256> table;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    append_utf8(table[byte], printable ? byte : next++);
  }
  return table;
}

TokenizerSpec empty_spec() {
  TokenizerSpec spec;
  spec.kind = "tiktoken";
  spec.whole_words = true;
  return spec;
}

}  // namespace

std::string printable_bytes(std::string_view bytes) {
  static const std::array<std::string, 256> kTable = make_printable();
  std::string out;
  for (const char c : bytes) out += kTable[static_cast<uint8_t>(c)];
  return out;
}

Result<TokenizerSpec> tokenizer_spec_of_tiktoken(
    std::string_view file, std::string_view pre,
    const std::vector<std::pair<int32_t, std::string>>& special) {
  TokenizerSpec spec = empty_spec();
  spec.pre = pre;
  while (!file.empty()) {
    const size_t end = std::min(file.find('\n'), file.size());
    std::string_view line = file.substr(0, end);
    file.remove_prefix(std::min(end + 1, file.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    const auto bytes = decode_base64(line.substr(0, space));
    int64_t rank = -1;
    const std::string_view number =
        space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (!bytes || bytes->empty() || parsed.ec != std::errc() ||
        parsed.ptr != number.data() + number.size()) {
      return invalid("a line of the rank file is not base64 and a number");
    }
    TANDEM_CHECK(set_token(spec, rank, printable_bytes(*bytes), TokenType::kNormal));
  }
  for (const auto& [id, spelling] : special) {
    TANDEM_CHECK(set_token(spec, id, spelling, TokenType::kControl));
  }
  return spec;
}

namespace {

const char* const kTekkenSpecial[] = {"<unk>",
                                      "<s>",
                                      "</s>",
                                      "[INST]",
                                      "[/INST]",
                                      "[AVAILABLE_TOOLS]",
                                      "[/AVAILABLE_TOOLS]",
                                      "[TOOL_RESULTS]",
                                      "[/TOOL_RESULTS]",
                                      "[TOOL_CALLS]",
                                      "[IMG]",
                                      "<pad>",
                                      "[IMG_BREAK]",
                                      "[IMG_END]",
                                      "[PREFIX]",
                                      "[MIDDLE]",
                                      "[SUFFIX]",
                                      "[SYSTEM_PROMPT]",
                                      "[/SYSTEM_PROMPT]",
                                      "[TOOL_CONTENT]"};

// Control tokens: listed in newer files; older ones have Mistral's usual twenty.
Status read_tekken_special(const JsonValue& json, int64_t count, TokenizerSpec& spec) {
  for (int64_t id = 0; id < count; ++id) {
    TANDEM_CHECK(set_token(spec, id, "<SPECIAL_" + std::to_string(id) + ">", TokenType::kControl));
  }
  const JsonValue* listed = json.find("special_tokens");
  if (listed == nullptr || listed->items().empty()) {
    int64_t id = 0;
    for (const char* spelling : kTekkenSpecial) {
      if (id < count) TANDEM_CHECK(set_token(spec, id++, spelling, TokenType::kControl));
    }
    return {};
  }
  for (const JsonValue& item : listed->items()) {
    const JsonValue* rank = item.find("rank");
    const JsonValue* spelling = item.find("token_str");
    const auto id = rank == nullptr ? std::nullopt : rank->as_integer();
    if (!id || *id < 0 || *id >= count || spelling == nullptr || !spelling->is_string()) {
      return invalid("tekken.json: a special token has no rank or no spelling");
    }
    TANDEM_CHECK(set_token(spec, *id, spelling->as_string(), TokenType::kControl));
  }
  return {};
}

}  // namespace

Result<TokenizerSpec> tokenizer_spec_of_tekken(const JsonValue& json) {
  const JsonValue* config = json.find("config");
  const JsonValue* vocab = json.find("vocab");
  if (config == nullptr || vocab == nullptr || !vocab->is_array()) {
    return invalid("tekken.json has a config and a vocabulary");
  }
  const auto integer = [&](const char* key) {
    const JsonValue* value = config->find(key);
    return value == nullptr ? std::nullopt : value->as_integer();
  };
  const auto size = integer("default_vocab_size");
  const auto special = integer("default_num_special_tokens");
  const JsonValue* pattern = config->find("pattern");
  if (!size || !special || *special < 0 || *size < *special ||
      *size > static_cast<int64_t>(kMaxTokens) || pattern == nullptr || !pattern->is_string()) {
    return invalid("tekken.json: the config has no sizes or no pattern");
  }
  TokenizerSpec spec = empty_spec();
  TANDEM_CHECK(read_tekken_special(json, *special, spec));
  for (const JsonValue& entry : vocab->items()) {
    const JsonValue* rank = entry.find("rank");
    const JsonValue* text = entry.find("token_bytes");
    const auto number = rank == nullptr ? std::nullopt : rank->as_integer();
    if (!number || *number < 0 || text == nullptr || !text->is_string()) {
      return invalid("tekken.json: an entry has no rank or no bytes");
    }
    if (*number >= *size - *special) continue;  // the file has more than the model uses
    const auto bytes = decode_base64(text->as_string());
    if (!bytes || bytes->empty()) return invalid("tekken.json: a token's bytes are not base64");
    TANDEM_CHECK(set_token(spec, *number + *special, printable_bytes(*bytes), TokenType::kNormal));
  }
  JsonValue regex = JsonValue::object();
  regex.set("Regex", *pattern);
  JsonValue split = JsonValue::object();
  split.set("type", JsonValue::string("Split"));
  split.set("pattern", std::move(regex));
  split.set("behavior", JsonValue::string("Isolated"));
  spec.pre_tokenizer = std::move(split);
  const auto find = [&](std::string_view spelling) {
    for (int64_t id = 0; id < *special; ++id) {
      if (spec.tokens[static_cast<size_t>(id)] == spelling) return static_cast<int32_t>(id);
    }
    return int32_t{-1};
  };
  spec.unknown = -1;  // every byte is a token
  spec.bos = find("<s>");
  spec.eos = find("</s>");
  spec.pad = find("<pad>");
  spec.add_bos = spec.bos >= 0;
  if (spec.eos >= 0) spec.end_of_generation = {spec.eos};
  return spec;
}

}  // namespace tandem::text
