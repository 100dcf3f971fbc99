// Program: a grammar as what the machine runs: rules over lexemes (regular expressions over bytes)
// and special tokens. Every front end (JSON Schema, Lark, GBNF, regular expressions, choices)
// builds one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "grammar/regex_store.h"

namespace tandem::grammar {

using NodeId = uint32_t;
using RuleId = uint32_t;
inline constexpr NodeId kNever = 0;    // derives nothing
inline constexpr NodeId kNothing = 1;  // derives the empty text

struct ProgramNode {
  enum class Kind : uint8_t {
    kNever,
    kNothing,
    kLexeme,
    kTokens,
    kSequence,
    kChoice,
    kRepeat,
    kRule
  };
  Kind kind = Kind::kNever;
  bool nullable = false;
  bool productive = false;
  // kLexeme: lexeme a; kTokens: token set a; kSequence, kChoice: children [a, a + b); kRepeat: node
  // a, b to c times; kRule: rule a.
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
};

class Program {
 public:
  using Kind = ProgramNode::Kind;
  Program();

  RegexStore& regex() { return regex_; }
  const RegexStore& regex() const { return regex_; }

  NodeId lexeme(RegexId regex);
  NodeId literal(std::string_view text);
  NodeId tokens(std::vector<int32_t> tokens);
  NodeId sequence(const std::vector<NodeId>& parts);
  NodeId choice(const std::vector<NodeId>& parts);
  NodeId repeat(NodeId inner, uint32_t min, uint32_t max);
  NodeId optional(NodeId inner) { return repeat(inner, 0, 1); }
  RuleId new_rule(std::string name = {});
  void define(RuleId rule, NodeId body) { rules_[rule] = body; }
  NodeId call(RuleId rule);

  // To be called once, when all rules are defined. Errors: 400 "invalid_grammar" when nothing can
  // be derived, or when a rule begins with itself in a way that is not rewritten; 400
  // "grammar_timeout" when that takes beyond `deadline`.
  Status finish(NodeId root, std::chrono::steady_clock::time_point deadline);
  // Whether `node` derives anything, as far as rules are defined now.
  bool derives_anything(NodeId node);

  NodeId root() const { return root_; }
  const ProgramNode& node(NodeId id) const { return nodes_[id]; }
  NodeId child(const ProgramNode& node, uint32_t index) const { return children_[node.a + index]; }
  NodeId rule(RuleId id) const { return rules_[id]; }
  RegexId lexeme_regex(uint32_t lexeme) const { return lexemes_[lexeme]; }
  const std::vector<int32_t>& token_set(uint32_t index) const { return token_sets_[index]; }
  size_t size() const { return nodes_.size() + children_.size() + regex_.size(); }
  size_t memory() const;

 private:
  NodeId add(ProgramNode node, std::span<const NodeId> children = {});
  template <typename Visit>
  void each_part(const ProgramNode& node, Visit visit) const;
  void settle(NodeId root);
  bool timed_out() const;
  Status remove_left_recursion();
  std::vector<RuleId> maybe_left_recursive() const;
  void leftmost(NodeId node, std::vector<RuleId>& out) const;
  bool reaches(RuleId from, RuleId rule) const;
  NodeId without_left(NodeId body, RuleId rule, std::vector<NodeId>& tails, int depth);

  RegexStore regex_;
  std::vector<ProgramNode> nodes_;
  std::vector<NodeId> children_;
  std::vector<NodeId> rules_;
  std::vector<std::string> rule_names_;
  std::vector<RegexId> lexemes_;
  std::unordered_map<RegexId, NodeId> lexeme_nodes_;
  std::unordered_map<NodeId, std::string>
      literals_;  // of lexemes that are one text: neighbours are joined
  std::vector<std::vector<int32_t>> token_sets_;
  std::vector<NodeId> calls_;
  NodeId root_ = kNever;
  bool rewritten_ = true;  // by without_left
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace tandem::grammar
