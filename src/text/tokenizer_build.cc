// Building a Tokenizer from its spec: checks, then tables.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "text/tokenizer_state.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {

constexpr size_t kMaxVocab = 1 << 21;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxVocabBytes = 64 << 20;
// Sum over tokens of length squared: the work of finding every way to split a token in two.
constexpr size_t kMaxSplitWork = size_t{1} << 32;
constexpr size_t kMaxPairs = 1 << 24;
constexpr std::string_view kBlock = "\xE2\x96\x81";

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_tokenizer", std::move(message));
}

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

// The byte that "<0x0A>" names, or -1.
int byte_of_spelling(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return -1;
  int value = 0;
  for (const char c : spelling.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::string with_spaces(std::string_view spelling) {
  std::string out;
  for (size_t from = 0; from < spelling.size();) {
    const size_t at = std::min(spelling.find(kBlock, from), spelling.size());
    out += spelling.substr(from, at - from);
    if (at < spelling.size()) out += ' ';
    from = at + kBlock.size();
  }
  return out;
}

std::string with_blocks(std::string_view spelling) {
  std::string out;
  for (const char c : spelling) {
    if (c == ' ') {
      out += kBlock;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

bool is_marker_spelling(std::string_view spelling) {
  for (size_t i = 0; i < spelling.size();) {
    const Decoded decoded = decode_utf8(spelling, i);
    if (decoded.code_point != 0x2581 && char_class(decoded.code_point) != kSpace) return true;
    i += decoded.size;
  }
  return false;
}

Status Tokenizer::State::check() const {
  static constexpr std::string_view kKinds[] = {"bpe", "tiktoken", "char_bpe", "spm", "unigram"};
  if (std::ranges::find(kKinds, spec.kind) == std::end(kKinds)) {
    return make_error(400, "unsupported_tokenizer",
                      "tokenizer kind \"" + spec.kind + "\" is not supported");
  }
  const size_t size = spec.tokens.size();
  if (size == 0 || size > kMaxVocab) return invalid("a vocabulary has 1 to 2097152 tokens");
  if (!spec.types.empty() && spec.types.size() != size) {
    return invalid("token types and tokens differ in number");
  }
  const bool scored = spec.kind == "spm" || spec.kind == "unigram";
  if (scored && spec.scores.size() != size) return invalid("scores and tokens differ in number");
  const auto moderate = [](double score) { return std::abs(score) <= 1e30; };
  if (!std::ranges::all_of(spec.scores, moderate))
    return invalid("a score is not a number of moderate size");
  size_t bytes = 0;
  for (const std::string& token : spec.tokens) {
    if (token.size() > kMaxTokenBytes) return invalid("a token is longer than 4096 bytes");
    bytes += token.size();
  }
  if (bytes > kMaxVocabBytes) return invalid("the tokens are more than 64 MiB together");
  const auto outside = [&](int32_t id) { return id < -1 || id >= static_cast<int64_t>(size); };
  bool bad = outside(spec.bos) || outside(spec.eos) || outside(spec.unknown) || outside(spec.pad);
  for (const int32_t id : spec.end_of_generation) bad = bad || id < 0 || outside(id);
  for (const AddedToken& added : spec.added) bad = bad || added.id < 0 || outside(added.id);
  if (bad) return invalid("a special token's id is outside the vocabulary");
  return {};
}

Status Tokenizer::State::build() {
  TANDEM_TRY(made_normalizer, Normalizer::create(spec.normalizer));
  normalizer = std::move(made_normalizer);
  if (!spec.pre_tokenizer.is_null()) {
    TANDEM_TRY(made, PreTokenizer::create(spec.pre_tokenizer));
    pre = std::move(made);
  } else if (!by_character()) {
    TANDEM_TRY(made, PreTokenizer::named(spec.pre));
    pre = std::move(made);
  }
  unigram_model = spec.kind == "unigram";
  fuse_across_pieces = spec.fuse_unknown && pre.empty();
  TANDEM_CHECK(build_vocabulary());
  TANDEM_CHECK(build_special());
  if (unigram_model) return build_unigram();
  bpe.unknown = spec.unknown;
  bpe.by_character = by_character();
  if (bpe.by_character) build_characters();
  if (spec.kind == "spm" || spec.kind == "tiktoken") {
    TANDEM_CHECK(build_implied_merges());
  } else {
    TANDEM_CHECK(build_merges());
  }
  if (bpe.by_character) build_adjacency();
  build_words();
  return {};
}

// What each token stands for, and the tokens of single bytes.
Status Tokenizer::State::build_vocabulary() {
  const size_t size = spec.tokens.size();
  control.resize(size);
  ends.resize(size);
  bpe.byte_tokens.fill(-1);
  for (size_t i = 0; i < size; ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& spelling = spec.tokens[i];
    const TokenType type = type_of(i);
    offsets.push_back(static_cast<uint32_t>(arena.size()));
    control[i] = type == TokenType::kControl;
    const int byte = type == TokenType::kByte ? byte_of_spelling(spelling) : -1;
    if (byte >= 0) {
      arena += static_cast<char>(byte);
      bpe.byte_tokens[static_cast<size_t>(byte)] = id;
    } else if (control[i]) {
      arena += spelling;
    } else if (type == TokenType::kUnknown && spec.single_precision) {
      arena += " \u2047 ";  // what SentencePiece decodes it to
    } else if (spec.metaspace) {
      arena += with_spaces(spelling);
    } else if (by_character() || type == TokenType::kUserDefined) {
      arena += spelling;
    } else {
      // A piece outside the alphabet (an unused or unknown token) is its own spelling and is never
      // produced.
      const std::optional<std::string> bytes = piece_bytes(spelling);
      arena += bytes ? *bytes : spelling;
      if (bytes && bytes->size() == 1) bpe.byte_tokens[static_cast<uint8_t>((*bytes)[0])] = id;
    }
  }
  offsets.push_back(static_cast<uint32_t>(arena.size()));
  for (const int32_t id : spec.end_of_generation) ends[static_cast<size_t>(id)] = true;
  if (spec.eos >= 0) ends[static_cast<size_t>(spec.eos)] = true;
  return {};
}

Status Tokenizer::State::build_special() {
  std::unordered_map<int32_t, AddedToken> rules;
  for (const AddedToken& added : spec.added) rules[added.id] = added;
  // SentencePiece finds user-defined tokens in normalized text, where spaces are U+2581.
  const bool after = spec.kind == "spm" || (spec.kind == "unigram" && spec.single_precision);
  std::string buffer;
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const TokenType type = type_of(i);
    if (type != TokenType::kControl && type != TokenType::kUserDefined) continue;
    const auto id = static_cast<int32_t>(i);
    special.push_back(id);
    AddedToken added;
    if (const auto found = rules.find(id); found != rules.end()) added = found->second;
    if (added.single_word) single_words.insert(id);
    SpecialMatcher::Rules matching = {.control = control[i],
                                      .strip_left = added.strip_left,
                                      .strip_right = added.strip_right,
                                      .single_word = added.single_word};
    const bool raw = control[i] || !(added.normalized || after);
    if (!raw && is_marker_spelling(spec.tokens[i])) {
      guarded.add(spec.tokens[i], id, {});
      guarded.add(with_spaces(spec.tokens[i]), id, {});
    }
    // SentencePiece's unigram model weighs them against other pieces instead.
    if (after && unigram_model && !control[i]) continue;
    // Control tokens are matched before any normalization could spell one.
    if (raw) {
      in_raw.add(spec.tokens[i], id, matching);
    } else {
      matching.guarded = is_marker_spelling(spec.tokens[i]);
      // GGUF converters write user-defined tokens with plain spaces.
      in_normalized.add(after ? with_blocks(spec.tokens[i])
                              : std::string(normalizer.apply(spec.tokens[i], buffer)),
                        id, matching);
    }
  }
  return {};
}

// Whether a user-defined token is matched wherever text spells it, so that merges need not make it.
bool Tokenizer::State::found_as_written(size_t token) const {
  return is_marker_spelling(spec.tokens[token]) &&
         !single_words.contains(static_cast<int32_t>(token)) &&
         spec.tokens[token].find(kBlock) == std::string::npos;
}

Status Tokenizer::State::build_merges() {
  // Three look-ups for each merge are most of a start's work on the vocabulary, hence a flat table.
  // Of equal tokens it finds what it was given first: the last one.
  WordTable ids;
  ids.reserve(spec.tokens.size());
  for (size_t i = spec.tokens.size(); i-- > 0;)
    ids.insert(hash_bytes(spec.tokens[i]), static_cast<int32_t>(i));
  const auto spelling = [&](int32_t token) {
    return std::string_view(spec.tokens[static_cast<size_t>(token)]);
  };
  const auto id_of = [&](std::string_view piece) {
    return ids.find(hash_bytes(piece), piece, spelling);
  };
  bpe.merges.reserve(spec.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string_view merge = spec.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return invalid("merge " + std::to_string(rank) + " is not two pieces with a space between");
    }
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const int32_t left = id_of(merge.substr(0, space));
    const int32_t right = id_of(merge.substr(space + 1));
    const int32_t both = id_of(joined);
    if (left < 0 || right < 0 || both < 0) {
      return invalid("merge " + std::to_string(rank) + " names a piece outside the vocabulary");
    }
    // Ordinary text must not become a control token, whatever a file says; nor a user-defined one
    // that is found by its spelling before any merge.
    const auto token = static_cast<size_t>(both);
    if (control[token] || (type_of(token) == TokenType::kUserDefined && found_as_written(token))) {
      continue;
    }
    bpe.merges.insert(left, right, {static_cast<uint32_t>(rank), both});
  }
  return {};
}

// Every way in which two symbols join to a token is a merge, ranked by that token.
Status Tokenizer::State::build_implied_merges() {
  const size_t size = spec.tokens.size();
  std::vector<uint32_t> ranks(size);
  if (spec.kind == "spm") {
    std::vector<double> scores(spec.scores);
    std::ranges::sort(scores, std::greater<>());
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    for (size_t i = 0; i < size; ++i) {
      ranks[i] = static_cast<uint32_t>(
          std::ranges::lower_bound(scores, spec.scores[i], std::greater<>()) - scores.begin());
    }
  } else {
    for (size_t i = 0; i < size; ++i) ranks[i] = static_cast<uint32_t>(i);
  }
  WordTable symbols;
  symbols.reserve(size + bpe.virtuals.size());
  const auto spelling = [&](int32_t symbol) {
    return symbol < bpe.first_virtual
               ? piece_of(static_cast<size_t>(symbol))
               : std::string_view(bpe.virtuals[static_cast<size_t>(symbol - bpe.first_virtual)]);
  };
  size_t work = 0;
  for (size_t i = 0; i < size; ++i) {
    const std::string_view piece = piece_of(i);
    if (!is_piece(i) || piece.empty()) continue;
    symbols.insert(hash_bytes(piece), static_cast<int32_t>(i));
    work += piece.size() * piece.size();
  }
  if (work > kMaxSplitWork) return invalid("the vocabulary's tokens are too long");
  for (size_t i = 0; i < bpe.virtuals.size(); ++i) {
    symbols.insert(hash_bytes(bpe.virtuals[i]), bpe.first_virtual + static_cast<int32_t>(i));
  }
  struct Pair {
    int32_t left;
    int32_t right;
    Merge merge;
  };
  std::vector<Pair> pairs;
  for (size_t i = 0; i < size; ++i) {
    const std::string_view piece = piece_of(i);
    if (!is_piece(i) || piece.size() < 2) continue;
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      if (by_character() && (static_cast<uint8_t>(piece[cut]) & 0xC0) == 0x80) continue;
      const std::string_view head = piece.substr(0, cut);
      const int32_t left = symbols.find(hash_bytes(head), head, spelling);
      if (left < 0) continue;
      const std::string_view tail = piece.substr(cut);
      const int32_t right = symbols.find(hash_bytes(tail), tail, spelling);
      if (right < 0) continue;
      if (pairs.size() == kMaxPairs) return invalid("the vocabulary implies too many merges");
      pairs.push_back({left, right, {ranks[i], static_cast<int32_t>(i)}});
    }
  }
  bpe.merges.reserve(pairs.size());
  for (const Pair& pair : pairs) bpe.merges.insert(pair.left, pair.right, pair.merge);
  return {};
}

// Tokens of single characters; and, where pieces are found by their spelling, symbols for
// characters that are only part of tokens.
void Tokenizer::State::build_characters() {
  bpe.first_virtual = static_cast<int32_t>(spec.tokens.size());
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const std::string_view piece = spec.tokens[i];
    if (!is_piece(i) || piece.empty()) continue;
    const Decoded decoded = decode_utf8(piece, 0);
    if (decoded.size == piece.size() && decoded.code_point != kInvalidCodePoint) {
      bpe.characters.insert(decoded.code_point, static_cast<int32_t>(i));
    }
  }
  if (spec.kind != "spm") return;
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const std::string_view piece = spec.tokens[i];
    if (!is_piece(i)) continue;
    for (size_t at = 0; at < piece.size();) {
      const Decoded decoded = decode_utf8(piece, at);
      if (decoded.code_point != kInvalidCodePoint && bpe.characters.find(decoded.code_point) < 0) {
        bpe.characters.insert(decoded.code_point,
                              bpe.first_virtual + static_cast<int32_t>(bpe.virtuals.size()));
        bpe.virtuals.emplace_back(piece.substr(at, decoded.size));
      }
      at += decoded.size;
    }
  }
}

void Tokenizer::State::build_adjacency() {
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const std::string_view piece = spec.tokens[i];
    if (!is_piece(i) || piece.empty()) continue;
    Decoded left = decode_utf8(piece, 0);
    for (size_t at = left.size; at < piece.size();) {
      const Decoded right = decode_utf8(piece, at);
      adjacency.insert(left.code_point, right.code_point);
      left = right;
      at += right.size;
    }
  }
}

Status Tokenizer::State::build_unigram() {
  unigram.single_precision = spec.single_precision;
  unigram.unknown = spec.unknown;
  unigram.byte_tokens = bpe.byte_tokens;
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    // `tokenizers` takes the lowest of all scores, SentencePiece that of ordinary pieces.
    if (!spec.single_precision) unigram.count_score(spec.scores[i]);
    if (!is_piece(i)) continue;
    TANDEM_CHECK(unigram.add(spec.tokens[i], static_cast<int32_t>(i), spec.scores[i]));
  }
  for (size_t i = 0; spec.single_precision && i < spec.tokens.size(); ++i) {
    if (type_of(i) != TokenType::kUserDefined || spec.tokens[i].empty()) continue;
    const std::string spelling = with_blocks(spec.tokens[i]);
    // Measured with sentencepiece 0.2.3, whatever the vocabulary: nothing for one byte, and a tenth
    // for each further one.
    const float score = 0.1F * static_cast<float>(spelling.size() - 1);
    TANDEM_CHECK(unigram.add(spelling, static_cast<int32_t>(i), static_cast<double>(score), false,
                             is_marker_spelling(spec.tokens[i])));
  }
  return {};
}

void Tokenizer::State::build_words() {
  BpeScratch scratch;
  std::vector<int32_t> tokens;
  bpe.words.reserve(spec.tokens.size());
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view word = piece_of(i);
    if (word.empty() || !is_piece(i)) continue;
    if (!spec.whole_words) {
      tokens.clear();
      bpe.merge(word, scratch, tokens);
      if (tokens.size() != 1 || tokens[0] != id) continue;
    }
    bpe.words.insert(hash_bytes(word), id);
  }
}

}  // namespace tandem::text
