#include "grammar/program.h"

#include <algorithm>

namespace tandem::grammar {

Program::Program() {
  ProgramNode never;
  nodes_.push_back(never);
  ProgramNode nothing;
  nothing.kind = Kind::kNothing;
  nothing.nullable = nothing.productive = true;
  nodes_.push_back(nothing);
}

NodeId Program::add(ProgramNode node, std::span<const NodeId> own) {
  if (!own.empty()) {
    node.a = static_cast<uint32_t>(children_.size());
    node.b = static_cast<uint32_t>(own.size());
    children_.insert(children_.end(), own.begin(), own.end());
  }
  nodes_.push_back(node);
  return static_cast<NodeId>(nodes_.size() - 1);
}

size_t Program::memory() const {
  return nodes_.size() * sizeof(ProgramNode) + children_.size() * sizeof(NodeId) + regex_.memory();
}

NodeId Program::lexeme(RegexId regex) {
  if (regex == kEpsilon) return kNothing;
  if (regex_.is_empty(regex)) return kNever;
  const auto known = lexeme_nodes_.find(regex);
  if (known != lexeme_nodes_.end()) return known->second;
  ProgramNode node;
  node.kind = Kind::kLexeme;
  node.a = static_cast<uint32_t>(lexemes_.size());
  node.productive = true;
  lexemes_.push_back(regex);
  NodeId out = add(node);
  if (regex_.nullable(regex)) {
    const NodeId parts[] = {kNothing, out};
    ProgramNode either;
    either.kind = Kind::kChoice;
    out = add(either, parts);
  }
  lexeme_nodes_.emplace(regex, out);
  return out;
}

NodeId Program::literal(std::string_view text) {
  const NodeId out = lexeme(regex_.literal(text));
  if (out > kNothing) literals_.emplace(out, text);
  return out;
}

NodeId Program::tokens(std::vector<int32_t> tokens) {
  if (tokens.empty()) return kNever;
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  const auto at = std::ranges::find(token_sets_, tokens);
  ProgramNode node;
  node.kind = Kind::kTokens;
  node.a = static_cast<uint32_t>(at - token_sets_.begin());
  node.productive = true;
  if (at == token_sets_.end()) token_sets_.push_back(std::move(tokens));
  return add(node);
}

NodeId Program::sequence(const std::vector<NodeId>& parts) {
  std::vector<NodeId> flat;
  const auto take = [&](NodeId part) {
    if (part == kNothing) return;
    const auto text = literals_.find(part);
    if (text != literals_.end() && !flat.empty()) {
      const auto before = literals_.find(flat.back());
      if (before != literals_.end()) {
        flat.back() = literal(before->second + text->second);
        return;
      }
    }
    flat.push_back(part);
  };
  for (const NodeId part : parts) {
    if (part == kNever) return kNever;
    const ProgramNode node = nodes_[part];
    if (node.kind == Kind::kSequence && node.b <= 8) {
      for (uint32_t i = 0; i < node.b; ++i) take(children_[node.a + i]);
    } else {
      take(part);
    }
  }
  if (flat.empty()) return kNothing;
  if (flat.size() == 1) return flat.front();
  ProgramNode node;
  node.kind = Kind::kSequence;
  return add(node, flat);
}

NodeId Program::choice(const std::vector<NodeId>& parts) {
  std::vector<NodeId> flat;
  for (const NodeId part : parts) {
    if (part == kNever) continue;
    const ProgramNode node = nodes_[part];
    if (node.kind == Kind::kChoice) {
      for (uint32_t i = 0; i < node.b; ++i) flat.push_back(children_[node.a + i]);
    } else {
      flat.push_back(part);
    }
  }
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return kNever;
  if (flat.size() == 1) return flat.front();
  ProgramNode node;
  node.kind = Kind::kChoice;
  return add(node, flat);
}

NodeId Program::repeat(NodeId inner, uint32_t min, uint32_t max) {
  if (max == 0 || inner == kNothing) return kNothing;
  if (inner == kNever) return min == 0 ? kNothing : kNever;
  if (min > max) return kNever;
  if (min == 1 && max == 1) return inner;
  ProgramNode node;
  node.kind = Kind::kRepeat;
  node.a = inner;
  node.b = min;
  node.c = max;
  return add(node);
}

RuleId Program::new_rule(std::string name) {
  rules_.push_back(kNever);
  rule_names_.push_back(std::move(name));
  ProgramNode node;
  node.kind = Kind::kRule;
  node.a = static_cast<uint32_t>(rules_.size() - 1);
  calls_.push_back(add(node));
  return node.a;
}

NodeId Program::call(RuleId rule) { return calls_[rule]; }

bool Program::is_productive(const ProgramNode& node) const {
  switch (node.kind) {
    case Kind::kNever:
      return false;
    case Kind::kNothing:
    case Kind::kLexeme:
    case Kind::kTokens:
      return true;
    case Kind::kSequence:
      for (uint32_t i = 0; i < node.b; ++i) {
        if (!nodes_[child(node, i)].productive) return false;
      }
      return true;
    case Kind::kChoice:
      for (uint32_t i = 0; i < node.b; ++i) {
        if (nodes_[child(node, i)].productive) return true;
      }
      return false;
    case Kind::kRepeat:
      return node.b == 0 || nodes_[node.a].productive;
    case Kind::kRule:
      return nodes_[rules_[node.a]].productive;
  }
  return false;
}

bool Program::is_nullable(const ProgramNode& node) const {
  switch (node.kind) {
    case Kind::kNothing:
      return true;
    case Kind::kNever:
    case Kind::kLexeme:
    case Kind::kTokens:
      return false;
    case Kind::kSequence:
      for (uint32_t i = 0; i < node.b; ++i) {
        if (!nodes_[child(node, i)].nullable) return false;
      }
      return true;
    case Kind::kChoice:
      for (uint32_t i = 0; i < node.b; ++i) {
        if (nodes_[child(node, i)].nullable) return true;
      }
      return false;
    case Kind::kRepeat:
      return node.b == 0 || nodes_[node.a].nullable;
    case Kind::kRule:
      return nodes_[rules_[node.a]].nullable;
  }
  return false;
}

// Least fixed points. Children mostly come before their parents, so a few rounds do.
void Program::settle() {
  for (ProgramNode& node : nodes_) {
    node.nullable = node.kind == Kind::kNothing;
    node.productive = node.nullable || node.kind == Kind::kLexeme || node.kind == Kind::kTokens;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (ProgramNode& node : nodes_) {
      if (!node.productive && is_productive(node)) changed = node.productive = true;
      if (!node.nullable && is_nullable(node)) changed = node.nullable = true;
    }
  }
}

bool Program::derives_anything(NodeId node) {
  settle();
  return nodes_[node].productive;
}

void Program::leftmost(NodeId id, std::vector<RuleId>& out) const {
  const ProgramNode& node = nodes_[id];
  switch (node.kind) {
    case Kind::kRule:
      out.push_back(node.a);
      break;
    case Kind::kRepeat:
      leftmost(node.a, out);
      break;
    case Kind::kSequence:
    case Kind::kChoice:
      for (uint32_t i = 0; i < node.b; ++i) {
        leftmost(child(node, i), out);
        if (node.kind == Kind::kSequence && !nodes_[child(node, i)].nullable) break;
      }
      break;
    default:
      break;
  }
}

// Whether `rule` may come first in what `from` derives.
bool Program::reaches(RuleId from, RuleId rule) const {
  std::vector<RuleId> work;
  std::vector<bool> seen(rules_.size(), false);
  leftmost(rules_[from], work);
  while (!work.empty()) {
    const RuleId at = work.back();
    work.pop_back();
    if (at == rule) return true;
    if (seen[at]) continue;
    seen[at] = true;
    leftmost(rules_[at], work);
  }
  return false;
}

// The body without the alternatives that begin with `rule`; what follows it in those goes to
// `tails`.
NodeId Program::without_left(NodeId id, RuleId rule, std::vector<NodeId>& tails, int depth) {
  constexpr int kDeepest = 40;
  const ProgramNode node = nodes_[id];
  if (depth > kDeepest) rewritten_ = false;
  if (!rewritten_) return id;
  if (node.kind == Kind::kRule) {
    if (node.a == rule) {
      tails.push_back(kNothing);
      return kNever;
    }
    // Others that lead back are put in place of their name.
    return reaches(node.a, rule) ? without_left(rules_[node.a], rule, tails, depth + 1) : id;
  }
  if (node.kind == Kind::kChoice) {
    std::vector<NodeId> parts;
    parts.reserve(node.b);
    for (uint32_t i = 0; i < node.b; ++i)
      parts.push_back(without_left(children_[node.a + i], rule, tails, depth + 1));
    return choice(parts);
  }
  if (node.kind == Kind::kSequence && !nodes_[child(node, 0)].nullable) {
    std::vector<NodeId> own;
    const NodeId head = without_left(child(node, 0), rule, own, depth + 1);
    if (own.empty()) return id;
    std::vector<NodeId> rest;
    for (uint32_t i = 1; i < node.b; ++i) rest.push_back(children_[node.a + i]);
    for (const NodeId tail : own) {
      std::vector<NodeId> whole{tail};
      whole.insert(whole.end(), rest.begin(), rest.end());
      tails.push_back(sequence(whole));
    }
    rest.insert(rest.begin(), head);
    return sequence(rest);
  }
  std::vector<RuleId> first;
  leftmost(id, first);
  for (const RuleId other : first)
    rewritten_ = rewritten_ && other != rule && !reaches(other, rule);
  return id;
}

// All but those from which no chain of first rules leads to a cycle: mostly none.
std::vector<RuleId> Program::maybe_left_recursive() const {
  std::vector<std::vector<RuleId>> called_by(rules_.size());
  std::vector<size_t> open(rules_.size());
  std::vector<RuleId> done;
  for (RuleId rule = 0; rule < rules_.size(); ++rule) {
    std::vector<RuleId> first;
    leftmost(rules_[rule], first);
    open[rule] = first.size();
    for (const RuleId other : first) called_by[other].push_back(rule);
    if (first.empty()) done.push_back(rule);
  }
  while (!done.empty()) {
    const RuleId rule = done.back();
    done.pop_back();
    for (const RuleId caller : called_by[rule]) {
      if (--open[caller] == 0) done.push_back(caller);
    }
  }
  std::vector<RuleId> out;
  for (RuleId rule = 0; rule < rules_.size(); ++rule) {
    if (open[rule] > 0) out.push_back(rule);
  }
  return out;
}

// a: a x | y   becomes   a: y x*
Status Program::remove_left_recursion() {
  for (const RuleId rule : maybe_left_recursive()) {
    if (!nodes_[rules_[rule]].productive || !reaches(rule, rule)) continue;
    std::vector<NodeId> tails;
    rewritten_ = true;
    const NodeId rest = without_left(rules_[rule], rule, tails, 0);
    std::erase(tails, kNothing);
    if (rewritten_) {
      rules_[rule] = sequence({rest, repeat(choice(tails), 0, kUnbounded)});
      settle();
    }
    if (!rewritten_ || reaches(rule, rule)) {
      return make_error(400, "unsupported_grammar",
                        "The rule '" + rule_names_[rule] +
                            "' can begin with itself in a way that is not supported.");
    }
    if (nodes_.size() > 1'000'000)
      return make_error(400, "grammar_too_large", "The grammar is too large.");
  }
  return {};
}

Status Program::finish(NodeId root) {
  root_ = root;
  settle();
  if (!nodes_[root].productive)
    return make_error(400, "invalid_grammar", "Nothing satisfies the grammar.");
  return remove_left_recursion();
}

}  // namespace tandem::grammar
