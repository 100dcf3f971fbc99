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

// Calls `visit` with what `node` consists of.
template <typename Visit>
void Program::each_part(const ProgramNode& node, Visit visit) const {
  switch (node.kind) {
    case Kind::kSequence:
    case Kind::kChoice:
      for (uint32_t i = 0; i < node.b; ++i) visit(child(node, i));
      break;
    case Kind::kRepeat:
      visit(node.a);
      break;
    case Kind::kRule:
      visit(rules_[node.a]);
      break;
    default:
      break;
  }
}

// Least fixed points of "productive" and "nullable", for all that `root` leads to: each node that
// is found to hold tells those that it is part of; a sequence waits for all of its parts.
void Program::settle(NodeId root) {
  constexpr uint32_t kUnseen = UINT32_MAX;
  std::vector<uint32_t> index(nodes_.size(), kUnseen);
  std::vector<NodeId> reached{root};
  index[root] = 0;
  std::vector<std::pair<uint32_t, uint32_t>> uses;  // of a part, in a whole
  for (size_t i = 0; i < reached.size(); ++i) {
    each_part(nodes_[reached[i]], [&](NodeId part) {
      if (index[part] == kUnseen) {
        index[part] = static_cast<uint32_t>(reached.size());
        reached.push_back(part);
      }
      uses.emplace_back(index[part], static_cast<uint32_t>(i));
    });
  }
  std::ranges::sort(uses);
  std::vector<size_t> first(reached.size() + 1, uses.size());
  for (size_t i = uses.size(); i-- > 0;) first[uses[i].first] = i;
  for (size_t i = reached.size(); i-- > 0;) first[i] = std::min(first[i], first[i + 1]);
  for (bool ProgramNode::* const property : {&ProgramNode::productive, &ProgramNode::nullable}) {
    std::vector<uint32_t> open(reached.size(), 1);
    std::vector<uint32_t> work;
    for (uint32_t i = 0; i < reached.size(); ++i) {
      ProgramNode& node = nodes_[reached[i]];
      const bool token = node.kind == Kind::kLexeme || node.kind == Kind::kTokens;
      node.*property = node.kind == Kind::kNothing || (node.kind == Kind::kRepeat && node.b == 0) ||
                       (token && property == &ProgramNode::productive);
      if (node.kind == Kind::kSequence) open[i] = node.b;
      if (node.*property) work.push_back(i);
    }
    while (!work.empty()) {
      const uint32_t part = work.back();
      work.pop_back();
      for (size_t use = first[part]; use < first[part + 1]; ++use) {
        const uint32_t whole = uses[use].second;
        ProgramNode& node = nodes_[reached[whole]];
        if (node.*property || --open[whole] > 0) continue;
        node.*property = true;
        work.push_back(whole);
      }
    }
  }
}

bool Program::derives_anything(NodeId node) {
  settle(node);
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
  if (depth > kDeepest || timed_out()) rewritten_ = false;
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
      settle(root_);
    }
    if (timed_out())
      return make_error(400, "grammar_timeout", "The grammar took too long to compile.");
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

bool Program::timed_out() const { return std::chrono::steady_clock::now() > deadline_; }

Status Program::finish(NodeId root, std::chrono::steady_clock::time_point deadline) {
  root_ = root;
  deadline_ = deadline;
  settle(root);
  if (!nodes_[root].productive)
    return make_error(400, "invalid_grammar", "Nothing satisfies the grammar.");
  return remove_left_recursion();
}

}  // namespace tandem::grammar
