#include "sim/event_prefixes.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::sim {

namespace {

constexpr int32_t kBlockTokens = 2;
const std::string kModel = "m";

void add_tokens(uint64_t block, std::vector<int32_t>& tokens) {
  tokens.push_back(static_cast<int32_t>(block));
  tokens.push_back(static_cast<int32_t>(block >> 32));
}

}  // namespace

EventPrefixes::EventPrefixes(size_t workers) : holders_({}, 1) {
  for (size_t worker = 0; worker < workers; ++worker)
    holders_.describe(static_cast<uint32_t>(worker), kModel, true);
}

router::PromptKeys EventPrefixes::keys_of(std::span<const uint64_t> chain) const {
  std::vector<int32_t> tokens;
  tokens.reserve(chain.size() * kBlockTokens);
  for (const uint64_t block : chain) add_tokens(block, tokens);
  const router::BlockKey root = holders_.hasher().root(kModel, "", kBlockTokens);
  return {kBlockTokens, router::PrefixHasher::of_tokens(root, tokens, kBlockTokens)};
}

void EventPrefixes::told(uint32_t worker, std::span<const BlockCache::Change> changes,
                         TimePoint now) {
  protocol::KvEventBatch batch;
  protocol::BlockStored* stored = nullptr;
  protocol::BlockRemoved* removed = nullptr;
  for (const BlockCache::Change& change : changes) {
    if (!change.came) {
      stored = nullptr;
      if (removed == nullptr)
        removed =
            &std::get<protocol::BlockRemoved>(batch.events.emplace_back(protocol::BlockRemoved{}));
      removed->hashes.push_back({.number = change.block});
      continue;
    }
    removed = nullptr;
    const bool follows = stored != nullptr && change.parent == stored->hashes.back().number;
    if (!follows) {
      stored = &std::get<protocol::BlockStored>(batch.events.emplace_back(protocol::BlockStored{}));
      stored->block_tokens = kBlockTokens;
      if (change.parent) stored->parent = protocol::EventHash{.number = *change.parent};
    }
    stored->hashes.push_back({.number = change.block});
    add_tokens(change.block, stored->tokens);
  }
  holders_.apply(worker, 0, batch);
  holders_.tend(now);
}

router::PrefixHolders::Expectation EventPrefixes::expect(uint32_t worker,
                                                         const router::PromptKeys& keys,
                                                         int32_t held, TimePoint now) {
  const router::PrefixHolders::Expectation made = holders_.new_expectation();
  holders_.expect(made, worker, 0, keys.keys, static_cast<size_t>(std::max(held, 0)), now);
  return made;
}

void EventPrefixes::settle(router::PrefixHolders::Expectation expectation, Duration time,
                           TimePoint now) {
  holders_.settle(expectation, time, now);
}

void EventPrefixes::match(const router::PromptKeys& keys, std::vector<int32_t>& held,
                          TimePoint now) {
  std::ranges::fill(held, 0);
  for (const router::HeldPrefix& one : holders_.match(std::span(&keys, 1), now)) {
    if (one.worker < held.size()) held[one.worker] = one.tokens / kBlockTokens;
  }
}

}  // namespace tandem::sim
