#include "grammar/grammar.h"

#include <algorithm>

#include "grammar/front_end.h"

namespace tandem::grammar {

using protocol::GrammarKind;
using protocol::GrammarSpec;

Grammar::Grammar(std::shared_ptr<const Program> program,
                 std::shared_ptr<const Vocabulary> vocabulary, std::vector<std::string> notes,
                 const MachineLimits& limits)
    : program_(std::move(program)),
      vocabulary_(std::move(vocabulary)),
      notes_(std::move(notes)),
      limits_(limits) {}

std::shared_ptr<Machine> Grammar::machine() const {
  const std::lock_guard lock(mutex_);
  // Sequences that run keep the old one.
  if (!machine_ || machine_->memory() > limits_.memory / 4)
    machine_ = std::make_shared<Machine>(program_, vocabulary_, limits_);
  return machine_;
}

Status FrontEnd::check_limits() const {
  if (size_limit != 0 && program.size() > size_limit)
    return make_error(400, "grammar_too_large", "The grammar is too large.");
  if (std::chrono::steady_clock::now() > deadline)
    return make_error(400, "grammar_timeout", "The grammar took too long to compile.");
  return {};
}

namespace {

// "12,20-25"
Result<std::vector<int32_t>> token_list(std::string_view text, size_t vocabulary) {
  constexpr size_t kMost = 100'000;
  std::vector<int32_t> out;
  size_t at = 0;
  const auto number = [&]() -> std::optional<int64_t> {
    const size_t start = at;
    int64_t value = 0;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9' && at - start < 9)
      value = value * 10 + (text[at++] - '0');
    return at == start ? std::nullopt : std::optional(value);
  };
  while (at < text.size()) {
    const auto first = number();
    auto last = first;
    if (first && at < text.size() && text[at] == '-') {
      ++at;
      last = number();
    }
    if (!last || *last < *first || (at < text.size() && text[at] != ','))
      return make_error(400, "invalid_grammar",
                        "\"<[" + std::string(text) + "]>\" is not a list of token ids.");
    if (at < text.size()) ++at;
    if (vocabulary != 0 && static_cast<size_t>(*last) >= vocabulary)
      return make_error(400, "invalid_grammar",
                        "Token id " + std::to_string(*last) + " is outside the vocabulary.");
    if (out.size() + static_cast<size_t>(*last - *first) > kMost)
      return make_error(400, "grammar_too_large", "A list of token ids is too long.");
    for (int64_t id = *first; id <= *last; ++id) out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

}  // namespace

Result<NodeId> FrontEnd::special(std::string_view text) {
  if (text.starts_with("<[") && text.ends_with("]>")) {
    TANDEM_TRY(list, token_list(text.substr(2, text.size() - 4),
                                vocabulary == nullptr ? 0 : vocabulary->size()));
    if (list.empty()) return make_error(400, "invalid_grammar", "A list of token ids is empty.");
    return program.tokens(std::move(list));
  }
  if (vocabulary == nullptr) return program.tokens({0});
  const auto token = vocabulary->find_special(text);
  if (!token) {
    return make_error(400, "invalid_grammar",
                      "The model has no special token named " + std::string(text) + ".");
  }
  return program.tokens({*token});
}

namespace {

struct Built {
  std::shared_ptr<Program> program;
  std::vector<std::string> notes;
};

Result<NodeId> build(FrontEnd& to, const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarKind::kJsonSchema: {
      auto schema = parse_json(spec.text);
      if (!schema) {
        return make_error(400, "invalid_grammar",
                          "The schema is not JSON: " + schema.error().message, spec.pointer);
      }
      return build_json_schema(to, *schema, spec.pointer);
    }
    case GrammarKind::kJsonObject: {
      JsonValue schema = JsonValue::object();
      schema.set("type", JsonValue::string("object"));
      return build_json_schema(to, schema, spec.pointer);
    }
    case GrammarKind::kRegex:
      return build_regex(to, spec.text);
    case GrammarKind::kGbnf:
      return build_gbnf(to, spec.text);
    case GrammarKind::kLark:
      return build_lark(to, spec.text);
    case GrammarKind::kChoice:
      return build_choice(to, spec.text);
  }
  return make_error(400, "invalid_grammar", "This kind of grammar is not known.");
}

Result<Built> build_program(const GrammarSpec& spec, const Vocabulary* vocabulary,
                            const CompileLimits& limits) {
  const auto point = [&](Error error) {
    if (!error.pointer) error.pointer = spec.pointer;
    return tl::unexpected(std::move(error));
  };
  if (spec.text.size() > limits.text) {
    return point(Error{400, "grammar_too_large",
                       "The grammar has " + std::to_string(spec.text.size()) + " bytes; at most " +
                           std::to_string(limits.text) + " are accepted."});
  }
  Built out{std::make_shared<Program>(), {}};
  FrontEnd to{.program = *out.program,
              .vocabulary = vocabulary,
              .strict = spec.strict,
              .spelling = spec.spelling,
              .size_limit = limits.size,
              .deadline = std::chrono::steady_clock::now() + limits.time};
  auto root = build(to, spec);
  if (!root) return point(root.error());
  if (auto checked = to.check_limits(); !checked) return point(checked.error());
  if (auto finished = out.program->finish(*root, to.deadline); !finished)
    return point(finished.error());
  out.notes = std::move(to.notes);
  return out;
}

}  // namespace

Result<std::shared_ptr<const Grammar>> compile(const GrammarSpec& spec,
                                               std::shared_ptr<const Vocabulary> vocabulary,
                                               const CompileLimits& limits) {
  TANDEM_TRY(built, build_program(spec, vocabulary.get(), limits));
  return std::make_shared<const Grammar>(std::move(built.program), std::move(vocabulary),
                                         std::move(built.notes), limits.machine);
}

Status validate(const GrammarSpec& spec, const CompileLimits& limits) {
  TANDEM_TRY(built, build_program(spec, nullptr, limits));
  (void)built;
  return {};
}

Matcher::Matcher(const std::shared_ptr<const Grammar>& grammar)
    : machine_(grammar->machine()), path_{machine_->start()} {}

bool Matcher::accept(int32_t token) {
  if (ended()) return false;
  if (token >= 0 && static_cast<size_t>(token) < machine_->vocabulary().size() &&
      machine_->vocabulary().ends_generation(token)) {
    if (!machine_->accepting(path_.back())) return false;
    path_.push_back(kEnded);
    return true;
  }
  const auto next = machine_->accept(path_.back(), token);
  if (!next || *next == kDeadConfig) return false;
  path_.push_back(*next);
  return true;
}

size_t Matcher::accept(std::span<const int32_t> tokens) {
  size_t count = 0;
  while (count < tokens.size() && accept(tokens[count])) ++count;
  return count;
}

void Matcher::rollback(size_t count) { path_.resize(path_.size() - std::min(count, size())); }

Status Matcher::mask_at(const Point& point, TokenMask& out) {
  if (point.ended)
    return make_error(500, "grammar_dead_end", "Nothing may follow the end of the text.");
  TANDEM_CHECK(point.machine->mask(point.config, out));
  if (std::ranges::all_of(out.words(), [](uint64_t word) { return word == 0; })) {
    return make_error(500, "grammar_dead_end",
                      "No token of the model can continue the text as the grammar wants it.");
  }
  return {};
}

Status Matcher::mask(TokenMask& out) const { return mask_at(point(), out); }

Result<std::vector<TokenMask>> Matcher::draft_masks(std::span<const int32_t> draft) const {
  std::vector<TokenMask> out;
  Matcher ahead = *this;
  for (size_t i = 0;; ++i) {
    if (ahead.ended()) break;
    TANDEM_CHECK(ahead.mask(out.emplace_back()));
    if (i == draft.size() || !ahead.accept(draft[i])) break;
  }
  return out;
}

bool Matcher::accepting() const { return ended() || machine_->accepting(path_.back()); }
bool Matcher::finished() const { return ended() || machine_->finished(path_.back()); }

std::string Matcher::forced(size_t limit) const {
  return ended() ? std::string() : machine_->forced(path_.back(), limit).bytes;
}

Result<size_t> Matcher::certain(std::span<const int32_t> tokens) const {
  constexpr size_t kLooked = 4;  // tokens longer than what the last few spell are rare
  const Vocabulary& vocabulary = machine_->vocabulary();
  Matcher ahead = *this;
  size_t count = ahead.accept(tokens);
  std::string tail;
  size_t certain = count;
  TokenMask mask;
  for (size_t looked = 0; looked < kLooked && count > 0; ++looked) {
    --count;
    ahead.rollback(1);
    tail.insert(0, vocabulary.bytes(tokens[count]));
    TANDEM_CHECK(ahead.mask(mask));
    if (vocabulary.extends(tail, mask)) certain = count;
  }
  return certain;
}

GrammarCache::GrammarCache(std::shared_ptr<const Vocabulary> vocabulary, CompileLimits limits,
                           size_t kept)
    : vocabulary_(std::move(vocabulary)), limits_(limits), kept_(kept) {}

Result<std::shared_ptr<const Grammar>> GrammarCache::get(const GrammarSpec& spec) {
  std::string key{static_cast<char>(spec.kind), spec.strict ? '1' : '0',
                  static_cast<char>(spec.spelling)};
  key += spec.pointer + '\n' + spec.text;  // notes say where
  {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(key);
    if (at != entries_.end()) {
      if (auto grammar = at->second.grammar.lock()) {
        at->second.used = ++clock_;
        at->second.held = grammar;
        trim();
        return grammar;
      }
    }
  }
  TANDEM_TRY(grammar, compile(spec, vocabulary_, limits_));
  const std::lock_guard lock(mutex_);
  entries_[std::move(key)] = {grammar, grammar, ++clock_};
  trim();
  return grammar;
}

// Forgets what nobody uses, and lets go of all but the latest.
void GrammarCache::trim() {
  std::erase_if(entries_, [](const auto& entry) { return entry.second.grammar.expired(); });
  while (true) {
    size_t held = 0;
    Entry* oldest = nullptr;
    for (auto& [key, entry] : entries_) {
      if (!entry.held) continue;
      ++held;
      if (oldest == nullptr || entry.used < oldest->used) oldest = &entry;
    }
    if (held <= kept_) return;
    oldest->held.reset();
  }
}

}  // namespace tandem::grammar
