// RegexStore: regular expressions over bytes as hash-consed values, with intersection and
// complement. A derivative by a byte is again such a value, so an expression is its own lazily
// built automaton: only states that a text reaches exist, and {0,100000} costs what is used of it.
//
// Equal expressions have equal ids (up to the simplifications made here). One owner at a time;
// copies are independent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/byte_set.h"

namespace tandem::grammar {

using RegexId = uint32_t;
inline constexpr RegexId kNoMatch = 0;  // the empty language
inline constexpr RegexId kEpsilon = 1;  // the empty string
inline constexpr uint32_t kUnbounded = UINT32_MAX;

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Hash128&) const = default;
};

// Decimal digits, possibly with a point, of a multiple of modulus / 10^scale. What is left to read
// of one.
struct DecimalState {
  uint64_t modulus = 1;    // at most 2^31
  uint64_t remainder = 0;  // of the digits read
  uint8_t scale = 0;       // digits after the point, at most
  uint8_t phase = 0;       // 0: before the point; k: k - 1 digits read after it
  bool any = false;        // a digit was read before the point
  bool operator==(const DecimalState&) const = default;
};

class RegexStore {
 public:
  RegexStore();

  RegexId bytes(const ByteSet& set);
  RegexId literal(std::string_view text);
  // Any of the texts; prefixes are shared.
  RegexId literals(std::vector<std::string> texts);
  RegexId concat(RegexId first, RegexId rest);
  RegexId concat(std::span<const RegexId> parts);
  RegexId concat(std::initializer_list<RegexId> parts) {
    return concat(std::span(parts.begin(), parts.size()));
  }
  RegexId either(const std::vector<RegexId>& parts);
  RegexId both(const std::vector<RegexId>& parts);
  RegexId negate(RegexId inner);
  RegexId repeat(RegexId inner, uint32_t min, uint32_t max);
  RegexId star(RegexId inner) { return repeat(inner, 0, kUnbounded); }
  RegexId optional(RegexId inner) { return repeat(inner, 0, 1); }
  RegexId decimal(const DecimalState& state);

  bool nullable(RegexId id) const { return nodes_[id].nullable; }
  RegexId derive(RegexId id, uint8_t byte);
  // Whether no string matches. Exact without intersections and complements; with them it searches,
  // and gives up after a bounded effort (gave_up): then it says no.
  bool is_empty(RegexId id);
  // The same by a search from `id` that may take more.
  bool is_empty(RegexId id, size_t effort);
  bool matches(RegexId id, std::string_view text);
  // {s : s + byte matches}
  RegexId without_last(RegexId id, uint8_t byte);

  uint32_t partition_of(RegexId id);
  const Partition& partition(uint32_t index) const { return partitions_[index]; }
  uint32_t refine(uint32_t a, uint32_t b);
  // Of the structure: equal in every store for equal expressions. Keyed by the process.
  Hash128 hash(RegexId id) const { return nodes_[id].hash; }

  // When it is a repetition (of anything, by itself or followed by something): what of, how often
  // at most, and the rest.
  struct Leading {
    RegexId body;
    uint32_t max;
    RegexId rest;
  };
  std::optional<Leading> leading_repeat(RegexId id) const;
  // Whether it surely goes on after any number of `character`: a repetition without a bound, also
  // one that only finitely many texts are taken from.
  bool takes_any(RegexId id, RegexId character) const;
  // Whether every match surely has a byte outside `set`.
  bool needs_outside(RegexId id, const ByteSet& set) const;
  // The bytes that may come first.
  ByteSet first_bytes(RegexId id);

  size_t size() const { return nodes_.size(); }
  size_t memory() const;
  // Grows with everything that is done here.
  uint64_t work() const { return work_; }
  bool gave_up() const { return gave_up_; }

 private:
  enum class Op : uint8_t {
    kNoMatch,
    kEpsilon,
    kBytes,
    kConcat,
    kEither,
    kBoth,
    kNot,
    kRepeat,
    kDecimal
  };
  enum class Life : uint8_t { kUnknown, kAlive, kDead };
  // a, b, c by op: kBytes: set a; kConcat: a then b; kEither, kBoth: children [a, a + b); kNot: a;
  // kRepeat: a, from b to c times; kDecimal: state a.
  struct Node {
    Op op = Op::kNoMatch;
    bool nullable = false;
    bool finite = true;  // matches finitely many texts, surely
    bool plain =
        true;  // no intersection, complement or decimal in it: empty only when it is kNoMatch
    Life life = Life::kUnknown;
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t c = 0;
    uint32_t partition = UINT32_MAX;
    uint32_t next = UINT32_MAX;  // where its derivatives are, by class of its partition
    Hash128 hash;
  };

  RegexId intern(Node node, std::span<const RegexId> children = {});
  bool same(const Node& a, std::span<const RegexId> children, const Node& b) const;
  std::span<const RegexId> children(const Node& node) const {
    return std::span(children_).subspan(node.a, node.b);
  }
  void grow_table();
  uint32_t add_partition(const Partition& partition);
  uint32_t compute_partition(RegexId id);
  RegexId compute_derivative(RegexId id, uint8_t byte);
  RegexId derive_concat(RegexId id, uint8_t byte);
  RegexId derive_decimal(const DecimalState& state, uint8_t byte);
  RegexId factor(std::vector<RegexId>& parts);

  std::vector<Node> nodes_;
  std::vector<RegexId> children_;
  std::vector<ByteSet> sets_;
  std::vector<DecimalState> decimals_;
  std::unordered_multimap<uint64_t, uint32_t> decimal_index_;
  std::vector<Partition> partitions_;
  std::unordered_map<uint64_t, uint32_t> refined_;
  std::unordered_multimap<uint64_t, uint32_t> partition_index_;
  std::vector<uint32_t> table_;  // open addressing: id + 1
  std::vector<RegexId> next_;
  uint64_t work_ = 0;
  bool gave_up_ = false;
};

}  // namespace tandem::grammar
