#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/detokenizer.h"
#include "text/tokenizer_state.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {
constexpr size_t kMaxIdleScratches = 8;

// What neither the text nor the sentinel holds. When the text holds every noncharacter: bytes that
// no text has, so that nothing is permitted.
std::string unused_noncharacter(std::string_view text, std::string_view sentinel) {
  for (uint32_t c = 0xFDD0; c <= 0xFDEF; ++c) {
    std::string made;
    append_utf8(made, c);
    if (made != sentinel && text.find(made) == std::string_view::npos) return made;
  }
  return "\xFF\xFE\xFD";
}

void drop(std::string_view text, std::string_view what, std::string& out) {
  out.clear();
  for (size_t from = 0; from < text.size();) {
    const size_t at = std::min(text.find(what, from), text.size());
    out.append(text.substr(from, at - from));
    from = at + what.size();
  }
}

bool holds_only(std::string_view text, std::string_view what) {
  while (text.starts_with(what)) text.remove_prefix(what.size());
  return text.empty();
}

// Puts a permit before each spelling that the text has as it was written.
void add_permits(const SpecialMatcher& spellings, std::string_view text, std::string_view permit,
                 std::string& out) {
  out.clear();
  const bool possible = permit.size() == 3 && permit[0] != '\xFF';
  for (size_t from = 0; from < text.size();) {
    const SpecialMatcher::Match match = spellings.find(text, from, true);
    const size_t end = match.token < 0 ? text.size() : match.end;
    const size_t begin = match.token < 0 ? end : match.begin;
    out.append(text.substr(from, begin - from));
    if (begin < end && possible) out.append(permit);
    out.append(text.substr(begin, end - begin));
    from = end;
  }
}
}  // namespace

void Tokenizer::State::fuse_unknown(size_t from, std::vector<int32_t>& out) const {
  const auto begin = out.begin() + static_cast<ptrdiff_t>(from);
  const auto end = std::unique(begin, out.end(), [this](int32_t a, int32_t b) {
    return a == spec.unknown && b == spec.unknown;
  });
  out.erase(end, out.end());
}

// Cuts where no token has the two characters side by side, so that what lies between two cuts is
// short enough to be looked up as a word.
void Tokenizer::State::encode_bpe(std::string_view piece, EncodeScratch& scratch,
                                  std::vector<int32_t>& out) const {
  const auto spelling = [this](int32_t token) { return piece_of(static_cast<size_t>(token)); };
  if (!bpe.by_character || (spec.whole_words && !pre.empty())) {
    bpe.encode(piece, spelling, scratch.bpe, out);
    return;
  }
  size_t begin = 0;
  uint32_t last = 0;
  for (size_t i = 0; i < piece.size();) {
    const Decoded decoded = decode_utf8(piece, i);
    if (i > begin && !adjacency.adjacent(last, decoded.code_point)) {
      bpe.encode(piece.substr(begin, i - begin), spelling, scratch.bpe, out);
      begin = i;
    }
    last = decoded.code_point;
    i += decoded.size;
  }
  if (begin < piece.size()) bpe.encode(piece.substr(begin), spelling, scratch.bpe, out);
}

void Tokenizer::State::encode_piece(std::string_view piece, EncodeScratch& scratch,
                                    std::vector<int32_t>& out) const {
  const size_t from = out.size();
  if (unigram_model) {
    unigram.encode(piece, scratch.unigram, out);
  } else {
    encode_bpe(piece, scratch, out);
  }
  if (spec.fuse_unknown && !fuse_across_pieces) fuse_unknown(from, out);
}

// Text without special tokens, normalized.
void Tokenizer::State::encode_plain(std::string_view text, bool first, EncodeScratch& scratch,
                                    std::vector<int32_t>& out) const {
  if (text.empty()) return;
  if (const ScanRules* rules = pre.scanner()) {
    for (size_t position = 0; position < text.size();) {
      const size_t end = next_piece(*rules, text, position);
      encode_piece(text.substr(position, end - position), scratch, out);
      position = end;
    }
    return;
  }
  pre.split(text, first, [&](std::string_view piece) { encode_piece(piece, scratch, out); });
}

// Drops the guard's characters; a unigram model learns where its guarded tokens may begin.
void Tokenizer::State::encode_guarded(std::string_view text, bool first, const Guard& guard,
                                      EncodeScratch& scratch, std::vector<int32_t>& out) const {
  if (guard.sentinel.empty()) return encode_plain(text, first, scratch, out);
  std::string& plain = scratch.guarded;
  UnigramScratch& unigram_scratch = scratch.unigram;
  plain.clear();
  unigram_scratch.permitted.clear();
  for (size_t i = 0; i < text.size();) {
    if (text[i] != guard.sentinel[0] && text[i] != guard.permit[0]) {
      plain += text[i++];
    } else if (text.substr(i).starts_with(guard.sentinel)) {
      i += guard.sentinel.size();
    } else if (text.substr(i).starts_with(guard.permit)) {
      unigram_scratch.permitted.push_back(static_cast<uint32_t>(plain.size()));
      i += guard.permit.size();
    } else {
      plain += text[i++];
    }
  }
  unigram_scratch.guarded = plain;
  encode_plain(plain, first, scratch, out);
  unigram_scratch.guarded = {};
}

void Tokenizer::State::encode_segment(std::string_view text, bool first, const Guard& guard,
                                      EncodeScratch& scratch, std::vector<int32_t>& out) const {
  if (text.empty()) return;
  const size_t begin = out.size();
  text = normalizer.apply(text, scratch.normalized);
  size_t from = 0;
  while (!in_normalized.empty()) {
    const SpecialMatcher::Match match = in_normalized.find(text, from, false, guard.permit);
    if (match.token < 0) break;
    encode_guarded(text.substr(from, match.begin - from), first && from == 0, guard, scratch, out);
    out.push_back(match.token);
    from = match.end;
  }
  encode_guarded(text.substr(from), first && from == 0, guard, scratch, out);
  if (fuse_across_pieces) fuse_unknown(begin, out);
  // One huge text must not pin its memory for the life of the encoder.
  constexpr size_t kKeep = 1 << 20;
  for (std::string* buffer : {&scratch.normalized, &scratch.guarded}) {
    if (buffer->capacity() > kKeep) std::string().swap(*buffer);
  }
}

std::unique_ptr<EncodeScratch> Tokenizer::State::borrow() {
  {
    const std::lock_guard lock(mutex);
    if (!idle.empty()) {
      auto scratch = std::move(idle.back());
      idle.pop_back();
      return scratch;
    }
  }
  return std::make_unique<EncodeScratch>();
}

void Tokenizer::State::give_back(std::unique_ptr<EncodeScratch> scratch) {
  const std::lock_guard lock(mutex);
  if (idle.size() < kMaxIdleScratches) idle.push_back(std::move(scratch));
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(TokenizerSpec spec, size_t cache_bytes) {
  auto state = std::make_unique<State>();
  if (cache_bytes > 0) state->segments = std::make_unique<SegmentCache>(cache_bytes);
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
  std::string buffer;
  const std::string permit =
      options.sentinel.empty() ? std::string() : unused_noncharacter(text, options.sentinel);
  const bool guarded = !options.sentinel.empty() && !state_->guarded.empty();
  const auto segment = [&](size_t begin, size_t end) {
    std::string_view part = text.substr(begin, end - begin);
    if (guarded && !holds_only(part, options.sentinel)) {
      add_permits(state_->guarded, part, permit, buffer);
      part = buffer;
    } else if (!options.sentinel.empty() && part.find(options.sentinel) != std::string_view::npos) {
      drop(part, options.sentinel, buffer);
      part = buffer;
    }
    const Guard guard = guarded ? Guard{.sentinel = options.sentinel, .permit = permit} : Guard{};
    if (!state_->segments || part.size() < SegmentCache::kLeastBytes) {
      state_->encode_segment(part, begin == 0, guard, *scratch, out);
      return;
    }
    // All that the ids depend on besides the text.
    std::string kind = begin == 0 ? "first" : "later";
    if (guarded) kind.append(options.sentinel).append(permit);
    if (state_->segments->find(part, kind, out)) return;
    const size_t before = out.size();
    state_->encode_segment(part, begin == 0, guard, *scratch, out);
    state_->segments->keep(part, kind, out.data() + before, out.size() - before);
  };
  size_t from = 0;
  while (!state_->in_raw.empty()) {
    const SpecialMatcher::Match match = state_->in_raw.find(text, from, options.parse_special);
    if (match.token < 0) break;
    segment(from, match.begin);
    out.push_back(match.token);
    from = match.end;
  }
  segment(from, text.size());
  state_->give_back(std::move(scratch));
  return out;
}

std::string_view Tokenizer::token_bytes(int32_t token) const {
  if (token < 0 || token >= vocab_size()) return {};
  return state_->bytes_of(token);
}

std::string Tokenizer::decode(std::span<const int32_t> tokens, bool keep_special) const {
  TokenBytes bytes(*this, {.keep_special = keep_special});
  Utf8Stream stream;
  std::string out;
  for (const int32_t token : tokens) stream.push(bytes.of(token), out);
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
const SegmentCache* Tokenizer::segment_cache() const { return state_->segments.get(); }

}  // namespace tandem::text
