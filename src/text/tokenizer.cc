#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/pretokenizer.h"
#include "text/special_matcher.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {

constexpr size_t kMaxVocab = 1 << 21;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxIdleScratches = 8;

// The printable alphabet of byte-level BPE: printable Latin-1 bytes stand for themselves, the other
// bytes for U+0100 onwards in order (the scheme of GPT-2's encoder).
struct ByteAlphabet {
  std::array<int16_t, 0x180> byte_of{};
  ByteAlphabet() {
    byte_of.fill(-1);
    uint32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      byte_of[printable ? static_cast<uint32_t>(byte) : next++] = static_cast<int16_t>(byte);
    }
  }
};

// Bytes of a piece spelled in the printable alphabet; nothing when it has another character.
std::optional<std::string> piece_bytes(std::string_view piece) {
  static const ByteAlphabet kAlphabet;
  std::string bytes;
  for (size_t i = 0; i < piece.size();) {
    const Decoded decoded = decode_utf8(piece, i);
    if (decoded.code_point >= kAlphabet.byte_of.size()) return std::nullopt;
    const int16_t byte = kAlphabet.byte_of[decoded.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    i += decoded.size;
  }
  return bytes;
}

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_tokenizer", std::move(message));
}

}  // namespace

struct Tokenizer::State {
  TokenizerSpec spec;
  PreTokenizer pre = PreTokenizer::kGpt2;
  std::string arena;              // every token's bytes, one after the other
  std::vector<uint32_t> offsets;  // of token i in the arena; one more at the end
  std::vector<bool> control;
  std::vector<bool> ends;
  std::vector<int32_t> special;
  SpecialMatcher matcher;
  Bpe bpe;

  // Encoders' working memory, lent to one caller at a time. The mutex guards `idle` alone.
  std::mutex mutex;
  std::vector<std::unique_ptr<BpeScratch>> idle;

  std::string_view bytes_of(int32_t token) const {
    const auto i = static_cast<size_t>(token);
    return std::string_view(arena).substr(offsets[i], offsets[i + 1] - offsets[i]);
  }
  TokenType type_of(size_t token) const {
    return spec.types.empty() ? TokenType::kNormal : static_cast<TokenType>(spec.types[token]);
  }

  Status check() const;
  Status build();
  Status build_merges(const std::unordered_map<std::string_view, int32_t>& ids);
  void build_words();
  void encode_plain(std::string_view text, BpeScratch& scratch, std::vector<int32_t>& out) const;
  std::unique_ptr<BpeScratch> borrow();
  void give_back(std::unique_ptr<BpeScratch> scratch);
};

Status Tokenizer::State::check() const {
  if (spec.kind != "bpe") {
    return make_error(400, "unsupported_tokenizer",
                      "tokenizer kind \"" + spec.kind + "\" is not supported (only \"bpe\" is)");
  }
  if (!find_pre_tokenizer(spec.pre)) {
    return make_error(
        400, "unsupported_tokenizer",
        "pre-tokenizer \"" + spec.pre + "\" is not supported (smollm, gpt-2, default)");
  }
  const size_t size = spec.tokens.size();
  if (size == 0 || size > kMaxVocab) return invalid("a vocabulary has 1 to 2097152 tokens");
  if (!spec.types.empty() && spec.types.size() != size) {
    return invalid("token types and tokens differ in number");
  }
  for (const std::string& token : spec.tokens) {
    if (token.size() > kMaxTokenBytes) return invalid("a token is longer than 4096 bytes");
  }
  const auto outside = [&](int32_t id) { return id < -1 || id >= static_cast<int64_t>(size); };
  bool bad = outside(spec.bos) || outside(spec.eos) || outside(spec.unknown) || outside(spec.pad);
  for (const int32_t id : spec.end_of_generation) bad = bad || id < 0 || outside(id);
  if (bad) return invalid("a special token's id is outside the vocabulary");
  return {};
}

Status Tokenizer::State::build() {
  pre = *find_pre_tokenizer(spec.pre);
  const size_t size = spec.tokens.size();
  control.resize(size);
  ends.resize(size);
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(size);
  bpe.byte_tokens.fill(-1);
  for (size_t i = 0; i < size; ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& spelling = spec.tokens[i];
    const TokenType type = type_of(i);
    offsets.push_back(static_cast<uint32_t>(arena.size()));
    ids[spelling] = id;
    if (type == TokenType::kControl || type == TokenType::kUserDefined) {
      arena += spelling;
      special.push_back(id);
      matcher.add(spelling, id);
      control[i] = type == TokenType::kControl;
      continue;
    }
    // A piece outside the alphabet (an unused or unknown token) is its own spelling and is never
    // produced.
    const std::optional<std::string> bytes = piece_bytes(spelling);
    arena += bytes ? *bytes : spelling;
    if (bytes && bytes->size() == 1) bpe.byte_tokens[static_cast<uint8_t>((*bytes)[0])] = id;
  }
  offsets.push_back(static_cast<uint32_t>(arena.size()));
  for (const int32_t id : spec.end_of_generation) ends[static_cast<size_t>(id)] = true;
  if (spec.eos >= 0) ends[static_cast<size_t>(spec.eos)] = true;
  TANDEM_CHECK(build_merges(ids));
  build_words();
  return {};
}

Status Tokenizer::State::build_merges(const std::unordered_map<std::string_view, int32_t>& ids) {
  bpe.merges.reserve(spec.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string_view merge = spec.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return invalid("merge " + std::to_string(rank) + " is not two pieces with a space between");
    }
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const auto left = ids.find(merge.substr(0, space));
    const auto right = ids.find(merge.substr(space + 1));
    const auto both = ids.find(joined);
    if (left == ids.end() || right == ids.end() || both == ids.end()) {
      return invalid("merge " + std::to_string(rank) + " names a piece outside the vocabulary");
    }
    bpe.merges.insert(left->second, right->second, {static_cast<uint32_t>(rank), both->second});
  }
  return {};
}

void Tokenizer::State::build_words() {
  BpeScratch scratch;
  std::vector<int32_t> tokens;
  bpe.words.reserve(spec.tokens.size());
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view word = bytes_of(id);
    if (word.empty() || std::binary_search(special.begin(), special.end(), id)) continue;
    tokens.clear();
    bpe.merge(word, scratch, tokens);
    if (tokens.size() == 1 && tokens[0] == id) bpe.words.insert(hash_bytes(word), id);
  }
}

void Tokenizer::State::encode_plain(std::string_view text, BpeScratch& scratch,
                                    std::vector<int32_t>& out) const {
  const auto bytes = [this](int32_t token) { return bytes_of(token); };
  for (size_t position = 0; position < text.size();) {
    const size_t end = next_piece(pre, text, position);
    bpe.encode(text.substr(position, end - position), bytes, scratch, out);
    position = end;
  }
}

std::unique_ptr<BpeScratch> Tokenizer::State::borrow() {
  {
    const std::lock_guard lock(mutex);
    if (!idle.empty()) {
      auto scratch = std::move(idle.back());
      idle.pop_back();
      return scratch;
    }
  }
  return std::make_unique<BpeScratch>();
}

void Tokenizer::State::give_back(std::unique_ptr<BpeScratch> scratch) {
  const std::lock_guard lock(mutex);
  if (idle.size() < kMaxIdleScratches) idle.push_back(std::move(scratch));
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(TokenizerSpec spec) {
  auto state = std::make_unique<State>();
  state->spec = std::move(spec);
  TANDEM_CHECK(state->check());
  TANDEM_CHECK(state->build());
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(state)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 4 + 8);
  if (options.add_bos && state_->spec.add_bos && bos() >= 0) out.push_back(bos());
  auto scratch = state_->borrow();
  std::string without_sentinel;
  const auto plain = [&](std::string_view part) {
    if (!options.sentinel.empty() && part.find(options.sentinel) != std::string_view::npos) {
      without_sentinel.clear();
      for (size_t from = 0; from < part.size();) {
        const size_t at = std::min(part.find(options.sentinel, from), part.size());
        without_sentinel.append(part.substr(from, at - from));
        from = at + options.sentinel.size();
      }
      part = without_sentinel;
    }
    state_->encode_plain(part, *scratch, out);
  };
  if (options.parse_special) {
    size_t from = 0;
    for (;;) {
      const SpecialMatcher::Match match = state_->matcher.find(text, from);
      if (match.token < 0) break;
      plain(text.substr(from, match.begin - from));
      out.push_back(match.token);
      from = match.end;
    }
    text = text.substr(from);
  }
  plain(text);
  state_->give_back(std::move(scratch));
  return out;
}

std::string_view Tokenizer::token_bytes(int32_t token) const {
  if (token < 0 || token >= vocab_size()) return {};
  return state_->bytes_of(token);
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool keep_special) const {
  Utf8Stream stream;
  std::string out;
  for (const int32_t token : tokens) {
    if (keep_special || !is_control(token)) stream.push(token_bytes(token), out);
  }
  stream.finish(out);
  return out;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(state_->spec.tokens.size()); }

bool Tokenizer::is_end_of_generation(int32_t token) const {
  return token >= 0 && token < vocab_size() && state_->ends[static_cast<size_t>(token)];
}

bool Tokenizer::is_control(int32_t token) const {
  return token >= 0 && token < vocab_size() && state_->control[static_cast<size_t>(token)];
}

const std::vector<int32_t>& Tokenizer::special_tokens() const { return state_->special; }
int32_t Tokenizer::bos() const { return state_->spec.bos; }
int32_t Tokenizer::eos() const { return state_->spec.eos; }
const TokenizerSpec& Tokenizer::spec() const { return state_->spec; }

}  // namespace tandem::text
