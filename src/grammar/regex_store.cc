#include "grammar/regex_store.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <unordered_set>

#include "numerics/hmac.h"
#include "numerics/mix.h"

namespace tandem::grammar {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Clients choose the expressions, so the hash by which masks are shared between grammars has a key
// of this process.
struct HashKey {
  uint64_t low;
  uint64_t high;
};
const HashKey& hash_key() {
  static const HashKey kKey = [] {
    const std::string bytes = numerics::random_bytes(sizeof(HashKey));
    HashKey out{};
    std::memcpy(&out, bytes.data(), sizeof out);
    return out;
  }();
  return kKey;
}

struct Hasher {
  Hash128 state{hash_key().low, hash_key().high};
  void add(uint64_t word) {
    state.low = mix64(state.low ^ word) + hash_key().high;
    state.high = mix64(state.high + word * 0x9e3779b97f4a7c15ULL) ^ (state.low >> 7);
  }
  void add(const Hash128& other) {
    add(other.low);
    add(other.high);
  }
};

}  // namespace

RegexStore::RegexStore() {
  table_.assign(1024, 0);
  partitions_.emplace_back();  // one class
  Node nothing;
  nothing.life = Life::kDead;
  intern(nothing);
  Node epsilon;
  epsilon.op = Op::kEpsilon;
  epsilon.nullable = true;
  epsilon.life = Life::kAlive;
  intern(epsilon);
}

bool RegexStore::same(const Node& a, std::span<const RegexId> own, const Node& b) const {
  if (a.op != b.op) return false;
  if (a.op == Op::kEither || a.op == Op::kBoth) return std::ranges::equal(own, children(b));
  return a.a == b.a && a.b == b.b && a.c == b.c;
}

void RegexStore::grow_table() {
  std::vector<uint32_t> bigger(table_.size() * 2, 0);
  const size_t mask = bigger.size() - 1;
  for (const uint32_t entry : table_) {
    if (entry == 0) continue;
    size_t at = nodes_[entry - 1].hash.low & mask;
    while (bigger[at] != 0) at = (at + 1) & mask;
    bigger[at] = entry;
  }
  table_.swap(bigger);
}

RegexId RegexStore::intern(Node node, std::span<const RegexId> own) {
  ++work_;
  Hasher hasher;
  hasher.add(static_cast<uint64_t>(node.op));
  switch (node.op) {
    case Op::kBytes:
      for (const uint64_t word : sets_[node.a].words) hasher.add(word);
      break;
    case Op::kConcat:
      hasher.add(nodes_[node.a].hash);
      hasher.add(nodes_[node.b].hash);
      break;
    case Op::kEither:
    case Op::kBoth: {
      // Children are in the order of this store's ids: the hash must not depend on it.
      Hash128 sum;
      for (const RegexId child : own) {
        sum.low += mix64(nodes_[child].hash.low);
        sum.high += mix64(nodes_[child].hash.high ^ nodes_[child].hash.low);
      }
      hasher.add(own.size());
      hasher.add(sum);
      break;
    }
    case Op::kNot:
      hasher.add(nodes_[node.a].hash);
      break;
    case Op::kRepeat:
      hasher.add(nodes_[node.a].hash);
      hasher.add(node.b);
      hasher.add(node.c);
      break;
    case Op::kDecimal: {
      const DecimalState& state = decimals_[node.a];
      hasher.add(state.modulus);
      hasher.add(state.remainder);
      hasher.add(uint64_t{state.scale} << 16 | uint64_t{state.phase} << 8 |
                 static_cast<uint64_t>(state.any));
      break;
    }
    case Op::kNoMatch:
    case Op::kEpsilon:
      break;
  }
  node.hash = hasher.state;
  const size_t mask = table_.size() - 1;
  size_t at = node.hash.low & mask;
  while (table_[at] != 0) {
    const Node& other = nodes_[table_[at] - 1];
    if (other.hash == node.hash && same(node, own, other)) return table_[at] - 1;
    at = (at + 1) & mask;
  }
  const auto id = static_cast<RegexId>(nodes_.size());
  if (!own.empty()) {
    node.a = static_cast<uint32_t>(children_.size());
    node.b = static_cast<uint32_t>(own.size());
    children_.insert(children_.end(), own.begin(), own.end());
  }
  if (node.nullable) node.life = Life::kAlive;
  nodes_.push_back(node);
  table_[at] = id + 1;
  if (nodes_.size() * 2 > table_.size()) grow_table();
  return id;
}

size_t RegexStore::memory() const {
  return nodes_.size() * sizeof(Node) + table_.size() * 4 + next_.size() * 4 +
         children_.size() * 4 + sets_.size() * sizeof(ByteSet) +
         partitions_.size() * sizeof(Partition) + decimals_.size() * sizeof(DecimalState);
}

RegexId RegexStore::bytes(const ByteSet& set) {
  if (set.empty()) return kNoMatch;
  // Sets are few: those that are equal share an index, since nodes are compared by it.
  const auto at = std::find(sets_.begin(), sets_.end(), set);
  const auto index = static_cast<uint32_t>(at - sets_.begin());
  if (at == sets_.end()) sets_.push_back(set);
  Node node;
  node.op = Op::kBytes;
  node.a = index;
  node.life = Life::kAlive;
  return intern(node);
}

RegexId RegexStore::literal(std::string_view text) {
  RegexId out = kEpsilon;
  for (size_t i = text.size(); i-- > 0;)
    out = concat(bytes(ByteSet::of(static_cast<uint8_t>(text[i]))), out);
  return out;
}

namespace {

// Sorted texts share what they begin with.
RegexId literal_tree(RegexStore& store, std::span<const std::string> texts, size_t depth) {
  if (texts.size() == 1) return store.literal(std::string_view(texts.front()).substr(depth));
  std::vector<RegexId> parts;
  size_t at = 0;
  if (texts.front().size() == depth) {
    parts.push_back(kEpsilon);
    at = 1;
  }
  // What all have in common goes first, so that long equal beginnings do not nest.
  size_t common = depth;
  if (at == 0) {
    const std::string& first = texts.front();
    const std::string& last = texts.back();
    while (common < first.size() && common < last.size() && first[common] == last[common]) ++common;
    if (common > depth) {
      return store.concat(store.literal(std::string_view(first).substr(depth, common - depth)),
                          literal_tree(store, texts, common));
    }
  }
  while (at < texts.size()) {
    size_t end = at + 1;
    while (end < texts.size() && texts[end][depth] == texts[at][depth]) ++end;
    parts.push_back(store.concat(store.literal(std::string_view(texts[at]).substr(depth, 1)),
                                 literal_tree(store, texts.subspan(at, end - at), depth + 1)));
    at = end;
  }
  return store.either(parts);
}

}  // namespace

RegexId RegexStore::literals(std::vector<std::string> texts) {
  if (texts.empty()) return kNoMatch;
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return literal_tree(*this, texts, 0);
}

RegexId RegexStore::concat(RegexId first, RegexId rest) {
  if (first == kNoMatch || rest == kNoMatch) return kNoMatch;
  if (first == kEpsilon) return rest;
  if (rest == kEpsilon) return first;
  std::vector<RegexId> chain;
  while (nodes_[first].op == Op::kConcat) {
    chain.push_back(nodes_[first].a);
    first = nodes_[first].b;
  }
  chain.push_back(first);
  for (size_t i = chain.size(); i-- > 0;) {
    const Node& head = nodes_[chain[i]];
    const Node& tail = nodes_[rest];
    Node node;
    node.op = Op::kConcat;
    node.a = chain[i];
    node.b = rest;
    node.nullable = head.nullable && tail.nullable;
    node.plain = head.plain && tail.plain;
    node.finite = head.finite && tail.finite;
    rest = intern(node);
  }
  return rest;
}

RegexId RegexStore::concat(std::span<const RegexId> parts) {
  RegexId out = kEpsilon;
  for (size_t i = parts.size(); i-- > 0;) out = concat(parts[i], out);
  return out;
}

// Joins alternatives that begin with the same part, and drops x beside y x when y may be empty.
RegexId RegexStore::factor(std::vector<RegexId>& parts) {
  const auto head = [&](RegexId id) { return nodes_[id].op == Op::kConcat ? nodes_[id].a : id; };
  const auto tail = [&](RegexId id) {
    return nodes_[id].op == Op::kConcat ? nodes_[id].b : kEpsilon;
  };
  std::unordered_set<RegexId> implied;
  for (const RegexId id : parts) {
    if (nodes_[id].op == Op::kConcat && nodes_[nodes_[id].a].nullable) implied.insert(nodes_[id].b);
  }
  if (!implied.empty()) std::erase_if(parts, [&](RegexId id) { return implied.contains(id); });
  std::vector<RegexId> by_head = parts;
  std::sort(by_head.begin(), by_head.end(),
            [&](RegexId a, RegexId b) { return head(a) != head(b) ? head(a) < head(b) : a < b; });
  bool joined = false;
  std::vector<RegexId> out;
  for (size_t at = 0; at < by_head.size();) {
    size_t end = at + 1;
    while (end < by_head.size() && head(by_head[end]) == head(by_head[at])) ++end;
    if (end - at == 1 || by_head[at] <= kEpsilon) {
      out.insert(out.end(), by_head.begin() + static_cast<std::ptrdiff_t>(at),
                 by_head.begin() + static_cast<std::ptrdiff_t>(end));
    } else {
      std::vector<RegexId> tails;
      for (size_t i = at; i < end; ++i) tails.push_back(tail(by_head[i]));
      const RegexId shared = head(by_head[at]);
      out.push_back(concat(shared, either(tails)));
      joined = true;
    }
    at = end;
  }
  parts = std::move(out);
  return joined ? either(parts) : kNone;
}

RegexId RegexStore::either(const std::vector<RegexId>& parts) {
  std::vector<RegexId> flat;
  ByteSet set;
  bool has_set = false;
  const auto take = [&](RegexId id) {
    if (id == kNoMatch) return;
    if (nodes_[id].op == Op::kBytes) {
      set = set | sets_[nodes_[id].a];
      has_set = true;
      return;
    }
    flat.push_back(id);
  };
  for (const RegexId id : parts) {
    if (nodes_[id].op == Op::kEither) {
      for (const RegexId child : children(nodes_[id])) take(child);
    } else {
      take(id);
    }
  }
  if (has_set) flat.push_back(bytes(set));
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return kNoMatch;
  if (flat.size() == 1) return flat.front();
  for (const RegexId id : flat) {
    if (nodes_[id].op == Op::kNot && nodes_[id].a == kNoMatch) return id;
  }
  // The empty string is needless beside what has it.
  if (flat.front() == kEpsilon &&
      std::any_of(flat.begin() + 1, flat.end(), [&](RegexId id) { return nodes_[id].nullable; }))
    flat.erase(flat.begin());
  if (flat.size() == 1) return flat.front();
  if (const RegexId joined = factor(flat); joined != kNone) return joined;
  if (flat.size() == 1) return flat.front();
  std::sort(flat.begin(), flat.end());
  Node node;
  node.op = Op::kEither;
  for (const RegexId id : flat) {
    node.nullable = node.nullable || nodes_[id].nullable;
    node.plain = node.plain && nodes_[id].plain;
    node.finite = node.finite && nodes_[id].finite;
  }
  return intern(node, flat);
}

RegexId RegexStore::both(const std::vector<RegexId>& parts) {
  std::vector<RegexId> flat;
  std::optional<ByteSet> set;
  const auto take = [&](RegexId id) {
    const Node& node = nodes_[id];
    if (node.op == Op::kBytes) {
      set = set ? *set & sets_[node.a] : sets_[node.a];
    } else if (!(node.op == Op::kNot && node.a == kNoMatch)) {
      flat.push_back(id);
    }
  };
  for (const RegexId id : parts) {
    if (nodes_[id].op == Op::kBoth) {
      for (const RegexId child : children(nodes_[id])) take(child);
    } else {
      take(id);
    }
  }
  if (set) flat.push_back(bytes(*set));
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return negate(kNoMatch);
  if (flat.front() == kNoMatch) return kNoMatch;
  if (flat.size() == 1) return flat.front();
  if (flat.front() == kEpsilon) {
    return std::ranges::all_of(flat, [&](RegexId id) { return nodes_[id].nullable; }) ? kEpsilon
                                                                                      : kNoMatch;
  }
  ByteSet first = ByteSet::all();
  bool nullable = true;
  for (const RegexId id : flat) {
    const Node& node = nodes_[id];
    nullable = nullable && node.nullable;
    if (node.op == Op::kNot && std::binary_search(flat.begin(), flat.end(), node.a))
      return kNoMatch;
    const Node& head = node.op == Op::kConcat ? nodes_[node.a] : node;
    if (head.op == Op::kBytes) first = first & sets_[head.a];
  }
  if (first.empty()) return kNoMatch;
  Node node;
  node.op = Op::kBoth;
  node.nullable = nullable;
  node.plain = false;
  node.finite = std::ranges::any_of(flat, [&](RegexId id) { return nodes_[id].finite; });
  return intern(node, flat);
}

RegexId RegexStore::negate(RegexId inner) {
  if (nodes_[inner].op == Op::kNot) return nodes_[inner].a;
  Node node;
  node.op = Op::kNot;
  node.a = inner;
  node.nullable = !nodes_[inner].nullable;
  node.plain = node.finite = false;
  return intern(node);
}

RegexId RegexStore::repeat(RegexId inner, uint32_t min, uint32_t max) {
  if (max == 0 || inner == kEpsilon) return kEpsilon;
  if (inner == kNoMatch) return min == 0 ? kEpsilon : kNoMatch;
  if (min > max) return kNoMatch;
  if (nodes_[inner].nullable) min = 0;
  if (min == 1 && max == 1) return inner;
  const Node& body = nodes_[inner];
  if (body.op == Op::kRepeat && body.b == 0 && body.c == kUnbounded) return inner;
  Node node;
  node.op = Op::kRepeat;
  node.a = inner;
  node.b = min;
  node.c = max;
  node.nullable = min == 0;
  node.plain = body.plain;
  node.finite = body.finite && max != kUnbounded;
  return intern(node);
}

RegexId RegexStore::decimal(const DecimalState& state) {
  Node node;
  node.op = Op::kDecimal;
  node.plain = node.finite = false;
  const uint64_t hash =
      mix64(state.remainder ^ mix64(state.modulus << 20 | uint64_t{state.scale} << 10 |
                                    uint64_t{state.phase} << 1 | (state.any ? 1 : 0)));
  node.a = static_cast<uint32_t>(decimals_.size());
  const auto [first, last] = decimal_index_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (decimals_[at->second] == state) node.a = at->second;
  }
  if (node.a == decimals_.size()) {
    decimals_.push_back(state);
    decimal_index_.emplace(hash, node.a);
  }
  uint64_t value = state.remainder;
  const int read = state.phase == 0 ? 0 : state.phase - 1;
  for (int i = read; i < state.scale; ++i) value = value * 10 % state.modulus;
  node.nullable = value % state.modulus == 0 && state.any && state.phase != 1;
  return intern(node);
}

std::optional<RegexStore::Leading> RegexStore::leading_repeat(RegexId id) const {
  const Node& node = nodes_[id];
  const Node& head = node.op == Op::kConcat ? nodes_[node.a] : node;
  if (head.op != Op::kRepeat) return std::nullopt;
  return Leading{head.a, head.c, node.op == Op::kConcat ? node.b : kEpsilon};
}

bool RegexStore::takes_any(RegexId id, RegexId character) const {
  const Node& node = nodes_[id];
  const Node& head = node.op == Op::kConcat ? nodes_[node.a] : node;
  const auto endless = [&](const Node& part) {
    return part.op == Op::kRepeat && part.a == character && part.c == kUnbounded;
  };
  if (head.op != Op::kBoth) return endless(head);
  bool any = false;
  for (const RegexId child : children(head)) {
    const Node& part = nodes_[child];
    if (endless(part)) {
      any = true;
    } else if (part.op != Op::kNot || !nodes_[part.a].finite) {
      return false;
    }
  }
  return any;
}

bool RegexStore::needs_outside(RegexId id, const ByteSet& set) const {
  while (true) {
    const Node& node = nodes_[id];
    const Node& head = node.op == Op::kConcat ? nodes_[node.a] : node;
    if (head.op == Op::kBytes && (sets_[head.a] & set).empty()) return true;
    if (node.op != Op::kConcat) return false;
    id = node.b;
  }
}

}  // namespace tandem::grammar
