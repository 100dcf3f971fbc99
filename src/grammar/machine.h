// Machine: a program while it runs. Three kinds of states, all built when a text first reaches them
// and remembered:
//
//   lexical state   what is left to read of the lexemes that began at the same place (a set of
//   derivatives) parser state    which lexemes and special tokens may begin here, each with what
//   follows it (shared stacks) configuration   pairs of the two: everything that a text may still
//   become
//
// A configuration is a number; texts with the same future have the same. So a sequence's state is
// one number per token, and taking tokens back is forgetting numbers. A lexeme that may end and may
// go on is followed both ways, so there is no longest match and nothing is guessed.
//
// A mask is made from the lexical state (which tokens stay within it, and where tokens go on behind
// it: remembered, also between grammars), and only those that go on are read with the parser.
//
// Every public function takes the lock; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "grammar/program.h"
#include "grammar/token_mask.h"
#include "grammar/vocabulary.h"

namespace tandem::grammar {

using ConfigId = uint32_t;
inline constexpr ConfigId kDeadConfig = 0;

struct MachineLimits {
  uint64_t work = 2'000'000;          // of one call: states and derivatives
  size_t memory = size_t{256} << 20;  // of all states
};

class Machine {
 public:
  Machine(std::shared_ptr<const Program> program, std::shared_ptr<const Vocabulary> vocabulary,
          MachineLimits limits);

  ConfigId start();
  // kDeadConfig when the token cannot come here. Errors: 400 "grammar_too_complex" past the limits.
  Result<ConfigId> accept(ConfigId from, int32_t token);
  Result<ConfigId> accept_text(ConfigId from, std::string_view bytes);
  Status mask(ConfigId at, TokenMask& out);
  bool accepting(ConfigId at);
  // Nothing but the end may follow.
  bool finished(ConfigId at);
  // The bytes that must follow, at most `limit`, and where they lead.
  struct Forced {
    std::string bytes;
    ConfigId end = kDeadConfig;
  };
  Forced forced(ConfigId from, size_t limit);
  size_t memory();
  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  using LexicalId = uint32_t;
  using ParserId = uint32_t;
  using CellId = uint32_t;
  using SetId = uint32_t;
  static constexpr uint32_t kUnknown = UINT32_MAX;

  struct Member {
    uint32_t lexeme;
    RegexId regex;
    bool operator==(const Member&) const = default;
  };
  struct Lexical {
    uint32_t members = 0;  // in members_
    uint32_t count = 0;
    uint32_t partition = 0;
    uint32_t next = kUnknown;  // in lexical_next_, by class
    bool goes_on = false;      // more may follow within its lexemes
    SetId ends = 0;            // lexemes that are complete here
    int16_t forced = -3;  // the only byte that may follow; -1: none, -2: several, -3: not known yet
    std::shared_ptr<const LexicalMask> mask = nullptr;
  };
  // What follows: a node, of a sequence from part `min` on, of a repetition so many more times;
  // then `next`.
  struct Cell {
    NodeId node;
    uint32_t min;
    uint32_t max;
    CellId next;
    bool operator==(const Cell&) const = default;
  };
  struct Head {
    uint32_t what;  // lexeme or token set
    CellId after;
    bool operator==(const Head&) const = default;
    auto operator<=>(const Head&) const = default;
  };
  struct Parser {
    std::vector<Head> lexemes;
    std::vector<Head> tokens;
    bool accepting = false;
    LexicalId start = 0;
    bool operator==(const Parser& other) const {
      return accepting == other.accepting && lexemes == other.lexemes && tokens == other.tokens;
    }
  };
  struct Entry {
    LexicalId lexical;
    ParserId parser;
    bool fresh;  // at the beginning of a lexeme: special tokens may come
    bool operator==(const Entry&) const = default;
    auto operator<=>(const Entry&) const = default;
  };
  struct Config {
    std::vector<Entry> entries;
    bool accepting = false;
    bool operator==(const Config&) const = default;
  };

  bool over() const;
  static tl::unexpected<Error> too_complex();
  void begin_call() { work_start_ = regex_.work() + steps_; }

  LexicalId intern_lexical(std::vector<Member> members);
  LexicalId step(LexicalId from, uint8_t byte) {
    if (from == 0) return 0;
    const Lexical& state = lexicals_[from];
    if (state.next != kUnknown) {
      const uint32_t known =
          lexical_next_[state.next + regex_.partition(state.partition).class_of[byte]];
      if (known != kUnknown) return known;
    }
    return compute_step(from, byte);
  }
  LexicalId compute_step(LexicalId from, uint8_t byte);
  SetId intern_set(std::vector<uint32_t> set);
  CellId cell(NodeId node, uint32_t min, uint32_t max, CellId next);
  CellId cell_of(NodeId node, CellId next);
  void expand(std::vector<CellId> work, Parser& out);
  void expand_cell(const Cell& at, std::vector<CellId>& work, Parser& out);
  ParserId intern_parser(Parser parser);
  ParserId advance(ParserId from, SetId ends);
  ConfigId intern_config(Config config);
  void enter(Config& config, ParserId parser) const;
  ConfigId step_config(ConfigId from, uint8_t byte);
  ConfigId take_special(ConfigId from, int32_t token);
  int16_t forced_byte(LexicalId state);

  std::shared_ptr<const LexicalMask> lexical_mask(LexicalId state);
  std::shared_ptr<const LexicalMask> compute_mask(LexicalId state);
  bool ends_outside_plain(RegexId regex);
  const TokenMask* plain_within(LexicalId state);
  void walk_behind(ParserId parser, const TokenTrie& trie, const std::vector<uint32_t>& nodes,
                   TokenMask& out);
  Status add_entry(const Entry& entry, TokenMask& out);

  const std::shared_ptr<const Program> program_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const MachineLimits limits_;

  std::mutex mutex_;  // of everything below
  RegexStore regex_;
  RegexId plain_text_ = kNoMatch;  // any number of plain characters
  RegexId json_character_ = kNoMatch;
  std::vector<Member> members_;
  std::vector<Lexical> lexicals_;
  std::vector<uint32_t> lexical_next_;
  std::unordered_multimap<uint64_t, LexicalId> lexical_index_;
  std::vector<std::vector<uint32_t>> sets_;
  std::unordered_multimap<uint64_t, SetId> set_index_;
  std::vector<Cell> cells_;
  std::unordered_multimap<uint64_t, CellId> cell_index_;
  std::vector<Parser> parsers_;
  std::unordered_multimap<uint64_t, ParserId> parser_index_;
  std::unordered_map<uint64_t, ParserId> advanced_;
  std::vector<Config> configs_;
  std::unordered_multimap<uint64_t, ConfigId> config_index_;
  std::unordered_map<uint64_t, ConfigId> config_next_;
  std::unordered_map<RegexId, bool> outside_plain_;
  std::vector<LexicalId> stack_;  // of a walk, by depth
  size_t state_bytes_ = 0;
  uint64_t steps_ = 0;
  uint64_t work_start_ = 0;
};

}  // namespace tandem::grammar
