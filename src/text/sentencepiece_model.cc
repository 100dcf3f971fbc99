#include "text/sentencepiece_model.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "text/base64.h"

namespace tandem::text {

namespace {

constexpr size_t kMaxTokens = 1 << 21;

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_tokenizer", "SentencePiece model: " + std::move(message));
}

// One field of a protocol buffer message.
struct Field {
  uint32_t number = 0;
  uint64_t integer = 0;    // varint, fixed32, fixed64
  std::string_view bytes;  // length-delimited
  bool delimited = false;
};

// Walks the fields of one message; never reads outside of it.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}
  bool damaged() const { return damaged_; }

  std::optional<Field> next() {
    if (rest_.empty() || damaged_) return std::nullopt;
    const uint64_t key = varint();
    Field field;
    field.number = static_cast<uint32_t>(key >> 3);
    switch (key & 7) {
      case 0:
        field.integer = varint();
        break;
      case 1:
        field.integer = fixed(8);
        break;
      case 2: {
        const uint64_t size = varint();
        if (damaged_ || size > rest_.size()) {
          damaged_ = true;
          break;
        }
        field.bytes = rest_.substr(0, size);
        field.delimited = true;
        rest_.remove_prefix(size);
        break;
      }
      case 5:
        field.integer = fixed(4);
        break;
      default:
        damaged_ = true;
    }
    if (damaged_ || field.number == 0) {
      damaged_ = true;
      return std::nullopt;
    }
    return field;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    damaged_ = true;
    return 0;
  }
  uint64_t fixed(size_t size) {
    uint64_t value = 0;
    if (rest_.size() < size) {
      damaged_ = true;
      return 0;
    }
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<uint8_t>(rest_[i]);
    rest_.remove_prefix(size);
    return value;
  }
  std::string_view rest_;
  bool damaged_ = false;
};

// Fields of sentencepiece_model.proto that decide a tokenization.
struct Options {
  uint64_t model_type = 1;  // 1 unigram, 2 BPE
  bool whitespace_as_suffix = false;
  bool byte_fallback = false;
  std::string charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

bool read_trainer(std::string_view bytes, Options& options, TokenizerSpec& spec) {
  Message message(bytes);
  spec.unknown = 0;
  spec.bos = 1;
  spec.eos = 2;
  while (const auto field = message.next()) {
    const auto id = static_cast<int32_t>(static_cast<int64_t>(field->integer));
    if (field->number == 3) options.model_type = field->integer;
    if (field->number == 24) options.whitespace_as_suffix = field->integer != 0;
    if (field->number == 35) options.byte_fallback = field->integer != 0;
    if (field->number == 40) spec.unknown = id;
    if (field->number == 41) spec.bos = id;
    if (field->number == 42) spec.eos = id;
    if (field->number == 43) spec.pad = id;
  }
  return !message.damaged();
}

bool read_normalizer(std::string_view bytes, Options& options) {
  Message message(bytes);
  while (const auto field = message.next()) {
    if (field->number == 2) options.charsmap = field->bytes;
    if (field->number == 3) options.add_dummy_prefix = field->integer != 0;
    if (field->number == 4) options.remove_extra_whitespaces = field->integer != 0;
    if (field->number == 5) options.escape_whitespaces = field->integer != 0;
  }
  return !message.damaged();
}

bool read_piece(std::string_view bytes, TokenizerSpec& spec) {
  Message message(bytes);
  std::string spelling;
  double score = 0;
  uint64_t type = 1;
  while (const auto field = message.next()) {
    if (field->number == 1) spelling = field->bytes;
    if (field->number == 2) {
      score = static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(field->integer)));
    }
    if (field->number == 3) type = field->integer;
  }
  if (message.damaged() || type < 1 || type > 6 || !std::isfinite(score)) return false;
  spec.tokens.push_back(std::move(spelling));
  spec.scores.push_back(score);
  spec.types.push_back(static_cast<int32_t>(type));  // numbered as TokenType
  return true;
}

}  // namespace

JsonValue user_defined_of(const TokenizerSpec& spec) {
  JsonValue list = JsonValue::array();
  for (size_t i = 0; i < spec.types.size(); ++i) {
    if (spec.types[i] == static_cast<int32_t>(TokenType::kUserDefined)) {
      list.push_back(JsonValue::string(spec.tokens[i]));
    }
  }
  return list;
}

Result<TokenizerSpec> tokenizer_spec_of_sentencepiece(std::string_view bytes) {
  TokenizerSpec spec;
  Options options;
  Message message(bytes);
  while (const auto field = message.next()) {
    if (!field->delimited) continue;
    bool good = true;
    if (field->number == 1) {
      if (spec.tokens.size() == kMaxTokens) return invalid("it has too many pieces");
      good = read_piece(field->bytes, spec);
    } else if (field->number == 2) {
      good = read_trainer(field->bytes, options, spec);
    } else if (field->number == 3) {
      good = read_normalizer(field->bytes, options);
    }
    if (!good) return invalid("it is damaged");
  }
  if (message.damaged() || spec.tokens.empty()) return invalid("it is damaged");
  if ((options.model_type != 1 && options.model_type != 2) || options.whitespace_as_suffix ||
      !options.escape_whitespaces) {
    return make_error(400, "unsupported_tokenizer",
                      "SentencePiece model: only unigram and BPE with spaces escaped before words "
                      "are supported");
  }
  const auto limit = static_cast<int32_t>(spec.tokens.size());
  for (int32_t* id : {&spec.unknown, &spec.bos, &spec.eos, &spec.pad}) {
    if (*id < 0 || *id >= limit) *id = -1;
  }
  spec.kind = options.model_type == 1 ? "unigram" : "spm";
  spec.single_precision = true;
  spec.fuse_unknown = true;
  spec.metaspace = true;
  spec.strip_leading_space = options.add_dummy_prefix || options.remove_extra_whitespaces;
  if (spec.eos >= 0) spec.end_of_generation = {spec.eos};
  spec.normalizer = JsonValue::object();
  spec.normalizer.set("type", JsonValue::string("SentencePiece"));
  if (!options.charsmap.empty()) {
    spec.normalizer.set("charsmap", JsonValue::string(encode_base64(options.charsmap)));
    spec.normalizer.set("user_defined", user_defined_of(spec));
  }
  spec.normalizer.set("add_dummy_prefix", JsonValue::boolean(options.add_dummy_prefix));
  spec.normalizer.set("remove_extra_whitespaces",
                      JsonValue::boolean(options.remove_extra_whitespaces));
  return spec;
}

}  // namespace tandem::text
