// What the handoff's tests share: shapes, prompts, and what is among a machine's actions.
#pragma once

#include <algorithm>
#include <numeric>
#include <variant>
#include <vector>

#include "kv/handoff/receive_handoff.h"
#include "kv/handoff/send_handoff.h"

namespace tandem::kv {

inline const HandoffShape kShape{
    .block_tokens = 4, .page_bytes = 600, .windows = {0}, .layer_groups = {0, 0, 0}};
constexpr TimePoint kStart{};

template <typename T, typename Actions>
int count(const Actions& actions) {
  return static_cast<int>(
      std::ranges::count_if(actions, [](const auto& a) { return std::holds_alternative<T>(a); }));
}

template <typename Frame>
const Frame* sent(const SendActions& actions) {
  for (const auto& action : actions) {
    if (const auto* send = std::get_if<SendFrame>(&action)) {
      if (const auto* frame = std::get_if<Frame>(&send->frame)) return frame;
    }
  }
  return nullptr;
}

template <typename Frame>
const Frame* sent(const ReceiveActions& actions) {
  for (const auto& action : actions) {
    if (const auto* send = std::get_if<SendToPeer>(&action)) {
      if (const auto* frame = std::get_if<Frame>(&send->frame)) return frame;
    }
  }
  return nullptr;
}

inline std::vector<protocol::PageTag> tags(int count) {
  std::vector<protocol::PageTag> out;
  out.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) out.push_back({i, static_cast<uint64_t>(100 + i)});
  return out;
}

inline std::vector<int32_t> prompt(int count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 1);
  return out;
}

inline SendHandoff sender(OfferEstimate estimate = {}) {
  return SendHandoff("h", kShape, {}, estimate, kStart);
}

// Layers 0 and 2 see everything, layer 1 the last four tokens: at 12 that is position 9 on.
inline const HandoffShape kWindowShape{
    .block_tokens = 4, .page_bytes = 600, .windows = {0, 4}, .layer_groups = {0, 1, 0}};

// A receiver with one layer of one block under way.
inline ReceiveHandoff copying(HandoffRanks ranks = {}) {
  ReceiveHandoff receive("h", 1, kShape, {}, ranks);
  (void)receive.open(kStart);
  (void)receive.on_offer({{"h", 1, 5}, prompt(8), "", 2, 1200}, kStart);
  (void)receive.on_reserved({0}, kStart);
  (void)receive.on_push({{"h", 1, 5}, 0, 0, tags(2)}, kStart);
  return receive;
}

}  // namespace tandem::kv
