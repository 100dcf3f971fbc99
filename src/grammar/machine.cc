#include "grammar/machine.h"

#include <algorithm>

#include "grammar/code_points.h"
#include "numerics/mix.h"

namespace tandem::grammar {
namespace {

constexpr size_t kMostHeads = 100'000;
constexpr size_t kMostEntries = 4096;

uint64_t combine(uint64_t hash, uint64_t value) {
  return mix64(hash ^ (value + 0x9e3779b97f4a7c15ULL));
}

}  // namespace

Machine::Machine(std::shared_ptr<const Program> program,
                 std::shared_ptr<const Vocabulary> vocabulary, MachineLimits limits)
    : program_(std::move(program)),
      vocabulary_(std::move(vocabulary)),
      limits_(limits),
      regex_(program_->regex()) {
  json_character_ = any_character(regex_, Spelling::kJson);
  plain_text_ = regex_.star(
      spell(regex_, CodePoints{{0x20, kLastCodePoint}}.without({{'"', '"'}, {'\\', '\\'}}),
            Spelling::kUtf8));
  lexicals_.emplace_back();  // 0: nothing may follow
  lexicals_.front().forced = -1;
  sets_.emplace_back();                   // 0: none
  cells_.push_back({kNothing, 0, 0, 0});  // 0: the end
  parsers_.emplace_back();
  configs_.emplace_back();
  stack_.resize(std::max(vocabulary_->trie().deepest, vocabulary_->rest().deepest) + 1U);
}

bool Machine::over() const {
  return regex_.work() + steps_ - work_start_ > limits_.work ||
         state_bytes_ + regex_.memory() > limits_.memory;
}

tl::unexpected<Error> Machine::too_complex() {
  return make_error(400, "grammar_too_complex",
                    "The grammar is too complex: this text needs too many states of it.");
}

size_t Machine::memory() {
  const std::lock_guard lock(mutex_);
  return state_bytes_ + regex_.memory();
}

Machine::LexicalId Machine::intern_lexical(std::vector<Member> members) {
  if (members.empty()) return 0;
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.lexeme < b.lexeme; });
  uint64_t hash = members.size();
  for (const Member& member : members)
    hash = combine(hash, uint64_t{member.lexeme} << 32 | member.regex);
  const auto [first, last] = lexical_index_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    const Lexical& known = lexicals_[at->second];
    if (std::ranges::equal(std::span(members_).subspan(known.members, known.count), members))
      return at->second;
  }
  Lexical state;
  state.members = static_cast<uint32_t>(members_.size());
  state.count = static_cast<uint32_t>(members.size());
  std::vector<uint32_t> ends;
  for (const Member& member : members) {
    state.partition = regex_.refine(state.partition, regex_.partition_of(member.regex));
    if (regex_.nullable(member.regex)) ends.push_back(member.lexeme);
    state.goes_on = state.goes_on || member.regex != kEpsilon;
  }
  state.ends = intern_set(std::move(ends));
  members_.insert(members_.end(), members.begin(), members.end());
  state_bytes_ += sizeof(Lexical) + members.size() * sizeof(Member) + 48;
  const auto id = static_cast<LexicalId>(lexicals_.size());
  lexicals_.push_back(std::move(state));
  lexical_index_.emplace(hash, id);
  return id;
}

Machine::LexicalId Machine::compute_step(LexicalId from, uint8_t byte) {
  ++steps_;
  const uint32_t partition = lexicals_[from].partition;
  const uint8_t byte_class = regex_.partition(partition).class_of[byte];
  const uint8_t representative = regex_.partition(partition).representative[byte_class];
  if (lexicals_[from].next == kUnknown) {
    lexicals_[from].next = static_cast<uint32_t>(lexical_next_.size());
    lexical_next_.resize(lexical_next_.size() + regex_.partition(partition).count, kUnknown);
    state_bytes_ += regex_.partition(partition).count * sizeof(uint32_t);
  }
  std::vector<Member> out;
  for (uint32_t i = 0; i < lexicals_[from].count; ++i) {
    const Member member = members_[lexicals_[from].members + i];
    const RegexId next = regex_.derive(member.regex, representative);
    if (next != kNoMatch && !regex_.is_empty(next)) out.push_back({member.lexeme, next});
  }
  const LexicalId id = intern_lexical(std::move(out));
  lexical_next_[lexicals_[from].next + byte_class] = id;
  return id;
}

Machine::SetId Machine::intern_set(std::vector<uint32_t> set) {
  if (set.empty()) return 0;
  uint64_t hash = set.size();
  for (const uint32_t value : set) hash = combine(hash, value);
  const auto [first, last] = set_index_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (sets_[at->second] == set) return at->second;
  }
  state_bytes_ += set.size() * 4 + 64;
  sets_.push_back(std::move(set));
  const auto id = static_cast<SetId>(sets_.size() - 1);
  set_index_.emplace(hash, id);
  return id;
}

// A node from its beginning on.
Machine::CellId Machine::cell_of(NodeId node, CellId next) {
  const ProgramNode& what = program_->node(node);
  return what.kind == ProgramNode::Kind::kRepeat ? cell(node, what.b, what.c, next)
                                                 : cell(node, 0, 0, next);
}

Machine::CellId Machine::cell(NodeId node, uint32_t min, uint32_t max, CellId next) {
  if (node == kNothing) return next;
  const Cell made{node, min, max, next};
  const uint64_t hash =
      combine(uint64_t{made.node} << 32 | made.next, uint64_t{made.min} << 32 | made.max);
  const auto [first, last] = cell_index_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (cells_[at->second] == made) return at->second;
  }
  state_bytes_ += sizeof(Cell) + 32;
  cells_.push_back(made);
  const auto id = static_cast<CellId>(cells_.size() - 1);
  cell_index_.emplace(hash, id);
  return id;
}

void Machine::expand_cell(const Cell& at, std::vector<CellId>& work, Parser& out) {
  using Kind = ProgramNode::Kind;
  const ProgramNode& node = program_->node(at.node);
  if (!node.productive) return;
  switch (node.kind) {
    case Kind::kNever:
      break;
    case Kind::kNothing:
      work.push_back(at.next);
      break;
    case Kind::kLexeme:
      out.lexemes.push_back({node.a, at.next});
      break;
    case Kind::kTokens:
      out.tokens.push_back({node.a, at.next});
      break;
    case Kind::kSequence: {
      const uint32_t index = at.min;
      const CellId after = index + 1 < node.b ? cell(at.node, index + 1, 0, at.next) : at.next;
      work.push_back(cell_of(program_->child(node, index), after));
      break;
    }
    case Kind::kChoice:
      for (uint32_t i = 0; i < node.b; ++i)
        work.push_back(cell_of(program_->child(node, i), at.next));
      break;
    case Kind::kRule:
      work.push_back(cell_of(program_->rule(node.a), at.next));
      break;
    case Kind::kRepeat: {
      const bool skips = at.min == 0 || program_->node(node.a).nullable;
      if (skips) work.push_back(at.next);
      if (at.max == 0) break;
      const uint32_t min = at.min > 0 ? at.min - 1 : 0;
      const uint32_t max = at.max == kUnbounded ? kUnbounded : at.max - 1;
      const CellId after = max == 0 ? at.next : cell(at.node, min, max, at.next);
      work.push_back(cell_of(node.a, after));
      break;
    }
  }
}

// All that may come first.
void Machine::expand(std::vector<CellId> work, Parser& out) {
  std::unordered_set<CellId> seen;
  while (!work.empty() && out.lexemes.size() < kMostHeads) {
    const CellId id = work.back();
    work.pop_back();
    if (!seen.insert(id).second) continue;
    ++steps_;
    if (id == 0) {
      out.accepting = true;
      continue;
    }
    const Cell at = cells_[id];
    expand_cell(at, work, out);
    if ((steps_ & 255) == 0 && over()) return;
  }
  std::sort(out.lexemes.begin(), out.lexemes.end());
  out.lexemes.erase(std::unique(out.lexemes.begin(), out.lexemes.end()), out.lexemes.end());
  std::sort(out.tokens.begin(), out.tokens.end());
  out.tokens.erase(std::unique(out.tokens.begin(), out.tokens.end()), out.tokens.end());
}

Machine::ParserId Machine::intern_parser(Parser parser) {
  if (!parser.accepting && parser.lexemes.empty() && parser.tokens.empty()) return 0;
  uint64_t hash = parser.accepting ? 1 : 2;
  for (const Head& head : parser.lexemes)
    hash = combine(hash, uint64_t{head.what} << 32 | head.after);
  hash = combine(hash, parser.tokens.size());
  for (const Head& head : parser.tokens)
    hash = combine(hash, uint64_t{head.what} << 32 | head.after);
  const auto [first, last] = parser_index_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (parsers_[at->second] == parser) return at->second;
  }
  std::vector<Member> members;
  for (const Head& head : parser.lexemes) {
    if (members.empty() || members.back().lexeme != head.what)
      members.push_back({head.what, program_->lexeme_regex(head.what)});
  }
  parser.start = intern_lexical(std::move(members));
  state_bytes_ +=
      sizeof(Parser) + (parser.lexemes.size() + parser.tokens.size()) * sizeof(Head) + 48;
  parsers_.push_back(std::move(parser));
  const auto id = static_cast<ParserId>(parsers_.size() - 1);
  parser_index_.emplace(hash, id);
  return id;
}

Machine::ParserId Machine::advance(ParserId from, SetId ends) {
  const uint64_t key = uint64_t{from} << 32 | ends;
  const auto known = advanced_.find(key);
  if (known != advanced_.end()) return known->second;
  std::vector<CellId> work;
  const std::vector<Head>& heads = parsers_[from].lexemes;
  for (const uint32_t lexeme : sets_[ends]) {
    for (auto at = std::ranges::lower_bound(heads, Head{lexeme, 0});
         at != heads.end() && at->what == lexeme; ++at)
      work.push_back(at->after);
  }
  Parser out;
  expand(std::move(work), out);
  const ParserId id = intern_parser(std::move(out));
  if (!over()) {
    advanced_.emplace(key, id);
    state_bytes_ += 48;
  }
  return id;
}

ConfigId Machine::intern_config(Config config) {
  std::sort(config.entries.begin(), config.entries.end());
  config.entries.erase(std::unique(config.entries.begin(), config.entries.end()),
                       config.entries.end());
  if (config.entries.empty() && !config.accepting) return kDeadConfig;
  uint64_t hash = config.accepting ? 1 : 2;
  for (const Entry& entry : config.entries)
    hash =
        combine(hash, (uint64_t{entry.lexical} << 32 | entry.parser) * 2 + (entry.fresh ? 1 : 0));
  const auto [first, last] = config_index_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (configs_[at->second] == config) return at->second;
  }
  state_bytes_ += sizeof(Config) + config.entries.size() * sizeof(Entry) + 48;
  configs_.push_back(std::move(config));
  const auto id = static_cast<ConfigId>(configs_.size() - 1);
  config_index_.emplace(hash, id);
  return id;
}

void Machine::enter(Config& config, ParserId id) const {
  const Parser& parser = parsers_[id];
  config.accepting = config.accepting || parser.accepting;
  if (parser.start != 0 || !parser.tokens.empty())
    config.entries.push_back({parser.start, id, true});
}

ConfigId Machine::start() {
  const std::lock_guard lock(mutex_);
  begin_call();
  Parser parser;
  expand({cell_of(program_->root(), 0)}, parser);
  Config config;
  enter(config, intern_parser(std::move(parser)));
  return intern_config(std::move(config));
}

ConfigId Machine::step_config(ConfigId from, uint8_t byte) {
  if (from == kDeadConfig) return kDeadConfig;
  const uint64_t key = uint64_t{from} << 8 | byte;
  const auto known = config_next_.find(key);
  if (known != config_next_.end()) return known->second;
  ++steps_;
  Config out;
  for (size_t i = 0; i < configs_[from].entries.size(); ++i) {
    const Entry entry = configs_[from].entries[i];
    const LexicalId next = step(entry.lexical, byte);
    if (next == 0) continue;
    if (lexicals_[next].goes_on) out.entries.push_back({next, entry.parser, false});
    const SetId ends = lexicals_[next].ends;
    if (ends != 0) enter(out, advance(entry.parser, ends));
    if (out.entries.size() > kMostEntries) {
      steps_ += limits_.work;  // too ambiguous: over() from here on
      break;
    }
  }
  const ConfigId id = intern_config(std::move(out));
  if (!over()) {
    config_next_.emplace(key, id);
    state_bytes_ += 40;
  }
  return id;
}

ConfigId Machine::take_special(ConfigId from, int32_t token) {
  std::vector<CellId> work;
  for (const Entry& entry : configs_[from].entries) {
    if (!entry.fresh) continue;
    for (const Head& head : parsers_[entry.parser].tokens) {
      const auto& set = program_->token_set(head.what);
      if (std::ranges::binary_search(set, token)) work.push_back(head.after);
    }
  }
  if (work.empty()) return kDeadConfig;
  Parser parser;
  expand(std::move(work), parser);
  Config config;
  enter(config, intern_parser(std::move(parser)));
  return intern_config(std::move(config));
}

Result<ConfigId> Machine::accept(ConfigId from, int32_t token) {
  const std::lock_guard lock(mutex_);
  begin_call();
  if (token < 0 || static_cast<size_t>(token) >= vocabulary_->size()) return kDeadConfig;
  const ConfigId special = take_special(from, token);
  ConfigId at = vocabulary_->bytes(token).empty() ? kDeadConfig : from;
  for (const char byte : vocabulary_->bytes(token)) {
    at = step_config(at, static_cast<uint8_t>(byte));
    if (at == kDeadConfig) break;
    if (over()) return too_complex();
  }
  if (over()) return too_complex();
  if (special == kDeadConfig || special == at) return at;
  if (at == kDeadConfig) return special;
  Config merged = configs_[at];
  const Config& other = configs_[special];
  merged.entries.insert(merged.entries.end(), other.entries.begin(), other.entries.end());
  merged.accepting = merged.accepting || other.accepting;
  return intern_config(std::move(merged));
}

Result<ConfigId> Machine::accept_text(ConfigId from, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  begin_call();
  for (const char byte : bytes) {
    from = step_config(from, static_cast<uint8_t>(byte));
    if (over()) return too_complex();
    work_start_ = regex_.work() + steps_;  // by byte, however long the text
  }
  return from;
}

bool Machine::accepting(ConfigId at) {
  const std::lock_guard lock(mutex_);
  return configs_[at].accepting;
}

bool Machine::finished(ConfigId at) {
  const std::lock_guard lock(mutex_);
  return configs_[at].accepting && configs_[at].entries.empty();
}

int16_t Machine::forced_byte(LexicalId state) {
  if (lexicals_[state].forced != -3) return lexicals_[state].forced;
  int16_t out = -1;
  const Partition partition = regex_.partition(lexicals_[state].partition);
  std::array<uint16_t, 256> sizes{};
  for (const uint8_t byte_class : partition.class_of) ++sizes[byte_class];
  for (uint16_t i = 0; i < partition.count && out != -2; ++i) {
    const uint8_t byte = partition.representative[i];
    if (step(state, byte) == 0) continue;
    out = out == -1 && sizes[i] == 1 ? static_cast<int16_t>(byte) : int16_t{-2};
  }
  lexicals_[state].forced = out;
  return out;
}

Machine::Forced Machine::forced(ConfigId from, size_t limit) {
  const std::lock_guard lock(mutex_);
  begin_call();
  Forced out{{}, from};
  while (out.bytes.size() < limit && out.end != kDeadConfig && !configs_[out.end].accepting &&
         !over()) {
    int16_t byte = -1;
    for (size_t i = 0; i < configs_[out.end].entries.size() && byte != -2; ++i) {
      const Entry entry = configs_[out.end].entries[i];
      if (entry.fresh && !parsers_[entry.parser].tokens.empty()) byte = -2;
      const int16_t own = byte == -2 ? int16_t{-1} : forced_byte(entry.lexical);
      if (own != -1) byte = byte == -1 || byte == own ? own : int16_t{-2};
    }
    if (byte < 0) break;
    const ConfigId next = step_config(out.end, static_cast<uint8_t>(byte));
    if (next == kDeadConfig) break;
    out.bytes += static_cast<char>(byte);
    out.end = next;
  }
  return out;
}

}  // namespace tandem::grammar
