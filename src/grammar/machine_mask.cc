// Masks: what a lexical state alone says of every token, and what the parser says of those that go
// on behind it.
//
// Cost: the first mask of a lexical state reads the trie where the state is alive (a few
// nanoseconds a node), afterwards one OR of a bit set. Inside JSON strings, where nearly all of a
// vocabulary is alive, plain tokens are known beforehand by their length and only the others are
// read.
#include <algorithm>

#include "grammar/code_points.h"
#include "grammar/machine.h"

namespace tandem::grammar {
namespace {

constexpr size_t kFew = 1024;

void add_tokens(const TokenTrie& trie, int32_t token, auto&& add) {
  if (token >= 0) {
    add(token);
  } else if (token <= TokenTrie::kSeveral) {
    for (const int32_t one : trie.several[static_cast<size_t>(TokenTrie::kSeveral - token)])
      add(one);
  }
}

}  // namespace

// Whether a lexeme never ends within plain text, so that plain tokens have no border.
bool Machine::ends_outside_plain(RegexId regex) {
  const auto known = outside_plain_.find(regex);
  if (known != outside_plain_.end()) return known->second;
  ByteSet plain = ByteSet::range(0x20, 0xFF);
  plain = plain & ~(ByteSet::of('"') | ByteSet::of('\\'));
  const bool out =
      regex_.needs_outside(regex, plain) || regex_.is_empty(regex_.both({regex, plain_text_}), 200);
  outside_plain_.emplace(regex, out);
  return out;
}

// The plain tokens that stay within the state, when that is known without reading them.
const TokenMask* Machine::plain_within(LexicalId state) {
  const Lexical& lexical = lexicals_[state];
  if (lexical.count > 64) return nullptr;
  const std::vector<Member> members(members_.begin() + lexical.members,
                                    members_.begin() + lexical.members + lexical.count);
  const TokenMask* out = nullptr;
  for (const Member& member : members) {
    if (regex_.takes_any(member.regex, json_character_)) out = &vocabulary_->plain(kUnbounded);
    const auto leading = regex_.leading_repeat(member.regex);
    // Only alone: beside others the longer tokens would have to be read for them.
    if (out == nullptr && members.size() == 1 && leading && leading->body == json_character_)
      out = &vocabulary_->plain(leading->max);
  }
  if (out == nullptr) return nullptr;
  for (const Member& member : members) {
    if (!ends_outside_plain(member.regex)) return nullptr;
  }
  return out;
}

std::shared_ptr<const LexicalMask> Machine::compute_mask(LexicalId root) {
  auto out = std::make_shared<LexicalMask>();
  TokenMask bits(vocabulary_->size());
  const TokenMask* plain = plain_within(root);
  if (plain != nullptr) bits.add(*plain);
  out->rest_only = plain != nullptr;
  const TokenTrie& trie = out->rest_only ? vocabulary_->rest() : vocabulary_->trie();
  std::unordered_map<SetId, size_t> borders;
  std::vector<SetId> border_sets;
  stack_[0] = root;
  const auto size = static_cast<uint32_t>(trie.size());
  for (uint32_t at = 0; at < size;) {
    const LexicalId next = step(stack_[trie.depth[at] - 1U], trie.byte[at]);
    if (next == 0) {
      at = trie.end[at];
      continue;
    }
    stack_[trie.depth[at]] = next;
    if (trie.token[at] != TokenTrie::kNone)
      add_tokens(trie, trie.token[at], [&](int32_t token) { bits.add(token); });
    const SetId ends = lexicals_[next].ends;
    if (ends != 0 && trie.end[at] > at + 1) {
      const auto [border, fresh] = borders.emplace(ends, out->borders.size());
      if (fresh) {
        out->borders.emplace_back();
        border_sets.push_back(ends);
      }
      out->borders[border->second].nodes.push_back(at);
    }
    ++at;
    if ((at & 1023) == 0) {
      steps_ += 16;
      if (over()) return nullptr;
    }
  }
  // Lexemes by their place among the state's, so that grammars that number them otherwise can share
  // this.
  const Lexical& lexical = lexicals_[root];
  for (size_t i = 0; i < border_sets.size(); ++i) {
    for (const uint32_t lexeme : sets_[border_sets[i]]) {
      for (uint32_t k = 0; k < lexical.count; ++k) {
        if (members_[lexical.members + k].lexeme == lexeme)
          out->borders[i].members.push_back(static_cast<uint16_t>(k));
      }
    }
  }
  const size_t count = bits.count();
  if (count > kFew) {
    out->many = std::move(bits);
    return out;
  }
  out->few.reserve(count);
  for (size_t word = 0; word < bits.words().size(); ++word) {
    for (uint64_t left = bits.words()[word]; left != 0; left &= left - 1)
      out->few.push_back(
          static_cast<int32_t>(word * 64 + static_cast<size_t>(std::countr_zero(left))));
  }
  return out;
}

std::shared_ptr<const LexicalMask> Machine::lexical_mask(LexicalId state) {
  if (lexicals_[state].mask) return lexicals_[state].mask;
  Hash128 key{lexicals_[state].count, 0};
  for (uint32_t i = 0; i < lexicals_[state].count; ++i) {
    const Hash128 hash = regex_.hash(members_[lexicals_[state].members + i].regex);
    key.low = key.low * 0x9e3779b97f4a7c15ULL + hash.low;
    key.high = (key.high ^ hash.high) * 0xff51afd7ed558ccdULL + hash.low;
  }
  auto mask = vocabulary_->find_mask(key);
  if (!mask) {
    const uint64_t before = steps_ + regex_.work();
    mask = compute_mask(state);
    if (!mask) return nullptr;
    // What was found at once is not worth a place.
    if (steps_ + regex_.work() - before > 32 || mask->many) vocabulary_->keep_mask(key, mask);
  }
  state_bytes_ += mask->many ? 64 : mask->bytes();
  lexicals_[state].mask = mask;
  return mask;
}

// Tokens that go on behind a lexeme which ends at `nodes`.
void Machine::walk_behind(ParserId first, const TokenTrie& trie, const std::vector<uint32_t>& nodes,
                          TokenMask& out) {
  struct Work {
    ParserId parser;
    uint32_t node;
  };
  std::vector<Work> work;
  std::unordered_set<uint64_t> seen;
  if (parsers_[first].start == 0) return;
  work.reserve(nodes.size());
  for (const uint32_t node : nodes) work.push_back({first, node});
  while (!work.empty()) {
    const Work item = work.back();
    work.pop_back();
    const uint16_t base = trie.depth[item.node];
    stack_[base] = parsers_[item.parser].start;
    const uint32_t end = trie.end[item.node];
    for (uint32_t at = item.node + 1; at < end;) {
      const LexicalId next = step(stack_[trie.depth[at] - 1U], trie.byte[at]);
      if (next == 0) {
        at = trie.end[at];
        continue;
      }
      stack_[trie.depth[at]] = next;
      if (trie.token[at] != TokenTrie::kNone)
        add_tokens(trie, trie.token[at], [&](int32_t token) { out.add(token); });
      const SetId ends = lexicals_[next].ends;
      if (ends != 0 && trie.end[at] > at + 1) {
        const ParserId behind = advance(item.parser, ends);
        if (parsers_[behind].start != 0 && seen.insert(uint64_t{behind} << 32 | at).second)
          work.push_back({behind, at});
      }
      ++at;
    }
    ++steps_;
    if (over()) return;
  }
}

Status Machine::add_entry(const Entry& entry, TokenMask& out) {
  if (entry.fresh) {
    for (const Head& head : parsers_[entry.parser].tokens) {
      for (const int32_t token : program_->token_set(head.what)) out.add(token);
    }
  }
  if (entry.lexical == 0) return {};
  const auto mask = lexical_mask(entry.lexical);
  if (!mask) return too_complex();
  if (mask->many) out.add(*mask->many);
  for (const int32_t token : mask->few) out.add(token);
  const TokenTrie& trie = mask->rest_only ? vocabulary_->rest() : vocabulary_->trie();
  for (const LexicalMask::Border& border : mask->borders) {
    std::vector<uint32_t> lexemes;
    lexemes.reserve(border.members.size());
    for (const uint16_t member : border.members)
      lexemes.push_back(members_[lexicals_[entry.lexical].members + member].lexeme);
    walk_behind(advance(entry.parser, intern_set(std::move(lexemes))), trie, border.nodes, out);
    if (over()) return too_complex();
  }
  return {};
}

Status Machine::mask(ConfigId at, TokenMask& out) {
  const std::lock_guard lock(mutex_);
  begin_call();
  if (out.tokens() != vocabulary_->size()) {
    out = TokenMask(vocabulary_->size());
  } else {
    out.clear();
  }
  const Config config = configs_[at];
  for (const Entry& entry : config.entries) TANDEM_CHECK(add_entry(entry, out));
  if (config.accepting) {
    for (const int32_t token : vocabulary_->end_of_generation()) out.add(token);
  }
  return {};
}

}  // namespace tandem::grammar
