// Derivatives of regular expressions, the classes of bytes they depend on, and the search for a
// match.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "grammar/regex_store.h"
#include "numerics/mix.h"

namespace tandem::grammar {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kSearchEffort = 20000;

// Classes by a small number for each byte, below `keys`.
Partition partition_by(size_t keys, const auto& key_of) {
  constexpr uint16_t kUnseen = UINT16_MAX;
  Partition out;
  std::vector<uint16_t> seen(keys, kUnseen);
  out.count = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    uint16_t& known = seen[key_of(static_cast<uint8_t>(byte))];
    if (known == kUnseen) {
      known = out.count;
      out.representative[out.count++] = static_cast<uint8_t>(byte);
    }
    out.class_of[byte] = static_cast<uint8_t>(known);
  }
  return out;
}

uint64_t hash_of(const Partition& partition) {
  uint64_t hash = partition.count;
  for (size_t at = 0; at < partition.class_of.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, partition.class_of.data() + at, sizeof word);
    hash = mix64(hash ^ word) + word;
  }
  return hash;
}

}  // namespace

uint32_t RegexStore::add_partition(const Partition& partition) {
  const uint64_t hash = hash_of(partition);
  const auto [first, last] = partition_index_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (partitions_[at->second] == partition) return at->second;
  }
  // The one of a single class was entered by hand.
  if (partition.count == 1) return 0;
  partitions_.push_back(partition);
  const auto index = static_cast<uint32_t>(partitions_.size() - 1);
  partition_index_.emplace(hash, index);
  return index;
}

uint32_t RegexStore::refine(uint32_t a, uint32_t b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  const uint64_t key = uint64_t{std::min(a, b)} << 32 | std::max(a, b);
  const auto at = refined_.find(key);
  if (at != refined_.end()) return at->second;
  ++work_;
  const Partition& x = partitions_[a];
  const Partition& y = partitions_[b];
  const uint32_t out = add_partition(partition_by(size_t{x.count} * y.count, [&](uint8_t byte) {
    return size_t{x.class_of[byte]} * y.count + y.class_of[byte];
  }));
  refined_.emplace(key, out);
  return out;
}

uint32_t RegexStore::partition_of(RegexId id) {
  if (nodes_[id].partition == kNone) nodes_[id].partition = compute_partition(id);
  return nodes_[id].partition;
}

uint32_t RegexStore::compute_partition(RegexId id) {
  const Node node = nodes_[id];
  switch (node.op) {
    case Op::kNoMatch:
    case Op::kEpsilon:
      return 0;
    case Op::kBytes: {
      const ByteSet set = sets_[node.a];
      return add_partition(partition_by(2, [&](uint8_t byte) { return size_t{set.has(byte)}; }));
    }
    case Op::kConcat: {
      // Along the chain for as long as parts may be empty.
      uint32_t out = partition_of(node.a);
      RegexId at = id;
      while (nodes_[at].op == Op::kConcat && nodes_[nodes_[at].a].nullable) {
        at = nodes_[at].b;
        out = refine(out, partition_of(nodes_[at].op == Op::kConcat ? nodes_[at].a : at));
      }
      return out;
    }
    case Op::kEither:
    case Op::kBoth: {
      uint32_t out = 0;
      for (uint32_t i = 0; i < node.b; ++i) out = refine(out, partition_of(children_[node.a + i]));
      return out;
    }
    case Op::kNot:
    case Op::kRepeat:
      return partition_of(node.a);
    case Op::kDecimal:
      return add_partition(partition_by(12, [](uint8_t byte) -> size_t {
        if (byte >= '0' && byte <= '9') return byte - size_t{'0'};
        return byte == '.' ? 10 : 11;
      }));
  }
  return 0;
}

RegexId RegexStore::derive(RegexId id, uint8_t byte) {
  if (id <= kEpsilon) return kNoMatch;
  const uint32_t partition = partition_of(id);
  const uint8_t byte_class = partitions_[partition].class_of[byte];
  if (nodes_[id].next == kNone) {
    nodes_[id].next = static_cast<uint32_t>(next_.size());
    next_.resize(next_.size() + partitions_[partition].count, kNone);
  }
  const uint32_t at = nodes_[id].next + byte_class;
  if (next_[at] == kNone) {
    const RegexId out = compute_derivative(id, partitions_[partition].representative[byte_class]);
    next_[at] = out;
  }
  return next_[at];
}

// d(a b) = d(a) b | d(b) when a may be empty; along the chain, since it can be long.
RegexId RegexStore::derive_concat(RegexId id, uint8_t byte) {
  std::vector<RegexId> parts;
  while (true) {
    const Node node = nodes_[id];
    if (node.op != Op::kConcat) {
      parts.push_back(derive(id, byte));
      break;
    }
    parts.push_back(concat(derive(node.a, byte), node.b));
    if (!nodes_[node.a].nullable) break;
    id = node.b;
  }
  return parts.size() == 1 ? parts.front() : either(parts);
}

RegexId RegexStore::compute_derivative(RegexId id, uint8_t byte) {
  ++work_;
  const Node node = nodes_[id];
  switch (node.op) {
    case Op::kNoMatch:
    case Op::kEpsilon:
      return kNoMatch;
    case Op::kBytes:
      return sets_[node.a].has(byte) ? kEpsilon : kNoMatch;
    case Op::kConcat:
      return derive_concat(id, byte);
    case Op::kEither:
    case Op::kBoth: {
      std::vector<RegexId> parts;
      parts.reserve(node.b);
      for (uint32_t i = 0; i < node.b; ++i) {
        const RegexId part = derive(children_[node.a + i], byte);
        if (node.op == Op::kBoth && part == kNoMatch) return kNoMatch;
        if (part != kNoMatch) parts.push_back(part);
      }
      return node.op == Op::kEither ? either(parts) : both(parts);
    }
    case Op::kNot:
      return negate(derive(node.a, byte));
    case Op::kRepeat: {
      const uint32_t max = node.c == kUnbounded ? kUnbounded : node.c - 1;
      const RegexId rest = repeat(node.a, node.b > 0 ? node.b - 1 : 0, max);
      return concat(derive(node.a, byte), rest);
    }
    case Op::kDecimal:
      return derive_decimal(decimals_[node.a], byte);
  }
  return kNoMatch;
}

RegexId RegexStore::derive_decimal(const DecimalState& state, uint8_t byte) {
  DecimalState out = state;
  if (byte == '.') {
    if (state.phase != 0 || !state.any || state.scale == 0) return kNoMatch;
    out.phase = 1;
    return decimal(out);
  }
  if (byte < '0' || byte > '9' || state.phase > state.scale) return kNoMatch;
  out.remainder = (state.remainder * 10 + (byte - '0')) % state.modulus;
  out.any = true;
  if (state.phase > 0) ++out.phase;
  return decimal(out);
}

bool RegexStore::is_empty(RegexId id) { return is_empty(id, kSearchEffort); }

bool RegexStore::is_empty(RegexId id, size_t effort) {
  if (id == kNoMatch || nodes_[id].plain) return id == kNoMatch;
  if (nodes_[id].life != Life::kUnknown) return nodes_[id].life == Life::kDead;
  gave_up_ = false;
  // Depth first: what is found alive makes all that leads to it alive.
  struct Frame {
    RegexId id;
    uint16_t next_class;
  };
  std::vector<Frame> path{{id, 0}};
  std::unordered_map<RegexId, bool> seen{{id, true}};
  const auto found = [&] {
    for (const Frame& frame : path) nodes_[frame.id].life = Life::kAlive;
    return false;
  };
  while (!path.empty()) {
    const RegexId at = path.back().id;
    const uint32_t partition = partition_of(at);
    if (path.back().next_class >= partitions_[partition].count) {
      path.pop_back();
      continue;
    }
    const uint8_t byte = partitions_[partition].representative[path.back().next_class++];
    const RegexId next = derive(at, byte);
    if (next == kNoMatch) continue;
    const Node& node = nodes_[next];
    if (node.plain || node.life == Life::kAlive) return found();
    if (node.life == Life::kDead || !seen.emplace(next, true).second) continue;
    if (seen.size() > effort) {
      gave_up_ = true;
      return found();
    }
    path.push_back({next, 0});
  }
  // All that can be reached was seen, and none of it matches.
  for (const auto& [dead, unused] : seen) nodes_[dead].life = Life::kDead;
  return true;
}

bool RegexStore::matches(RegexId id, std::string_view text) {
  for (const char byte : text) {
    id = derive(id, static_cast<uint8_t>(byte));
    if (id == kNoMatch) return false;
  }
  return nodes_[id].nullable;
}

RegexId RegexStore::without_last(RegexId id, uint8_t byte) {
  const Node node = nodes_[id];
  switch (node.op) {
    case Op::kNoMatch:
    case Op::kEpsilon:
    case Op::kDecimal:
      return kNoMatch;
    case Op::kBytes:
      return sets_[node.a].has(byte) ? kEpsilon : kNoMatch;
    case Op::kConcat: {
      // From the end of the chain: the last byte lies in a part if all behind it may be empty.
      std::vector<RegexId> chain;
      while (nodes_[id].op == Op::kConcat) {
        chain.push_back(nodes_[id].a);
        id = nodes_[id].b;
      }
      RegexId out = without_last(id, byte);
      bool rest_nullable = nodes_[id].nullable;
      for (size_t i = chain.size(); i-- > 0;) {
        out = concat(chain[i], out);
        if (rest_nullable) out = either({out, without_last(chain[i], byte)});
        rest_nullable = rest_nullable && nodes_[chain[i]].nullable;
      }
      return out;
    }
    case Op::kEither:
    case Op::kBoth: {
      std::vector<RegexId> parts;
      parts.reserve(node.b);
      for (uint32_t i = 0; i < node.b; ++i)
        parts.push_back(without_last(children_[node.a + i], byte));
      return node.op == Op::kEither ? either(parts) : both(parts);
    }
    case Op::kNot:
      return negate(without_last(node.a, byte));
    case Op::kRepeat: {
      const RegexId last = without_last(node.a, byte);
      if (last == kNoMatch) return kNoMatch;
      const uint32_t max = node.c == kUnbounded ? kUnbounded : node.c - 1;
      return concat(repeat(node.a, node.b > 0 ? node.b - 1 : 0, max), last);
    }
  }
  return kNoMatch;
}

ByteSet RegexStore::first_bytes(RegexId id) {
  ByteSet out;
  const uint32_t index = partition_of(id);
  const Partition partition = partitions_[index];
  std::array<bool, 256> alive{};
  for (uint16_t i = 0; i < partition.count; ++i)
    alive[i] = !is_empty(derive(id, partition.representative[i]));
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (alive[partition.class_of[byte]]) out.add(static_cast<uint8_t>(byte));
  }
  return out;
}

}  // namespace tandem::grammar
