// Both machines against a peer that says whatever it likes, whenever it likes. What this side does
// of itself is sound, as kv/manager and the engine have it. The peer may end the handoff; it may
// not get a page read or written that was not meant, or leave one behind.
#include <cstdlib>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "kv/handoff/receive_handoff.h"
#include "kv/handoff/send_handoff.h"

namespace {

using namespace tandem;
using namespace tandem::kv;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Input {
  const uint8_t* at;
  const uint8_t* end;
  uint8_t byte() { return at == end ? 0 : *at++; }
  // Mostly small, at times anything.
  uint32_t number() {
    const uint8_t first = byte();
    if (first < 250) return first % 12;
    uint32_t wide = 0;
    for (int i = 0; i < 4; ++i) wide = wide << 8 | byte();
    return wide;
  }
  protocol::HandoffKey key(uint64_t nonce) {
    const uint8_t how = byte();
    return {how % 16 == 1 ? "other" : "h", how % 16 == 2 ? number() : 1 + how / 128U,
            how % 16 == 3 ? number() : nonce};
  }
  std::vector<protocol::PageTag> tags() {
    std::vector<protocol::PageTag> out;
    for (uint8_t i = byte() % 9; i > 0; --i) out.push_back({byte(), byte()});
    return out;
  }
};

const HandoffShape& shape(bool windows) {
  static const HandoffShape plain{
      .block_tokens = 4, .page_bytes = 600, .windows = {0}, .layer_groups = {0, 0, 0}};
  static const HandoffShape window{
      .block_tokens = 4, .page_bytes = 600, .windows = {0, 4}, .layer_groups = {0, 1, 0}};
  return windows ? window : plain;
}

constexpr uint64_t kNonce = 7;

struct Sender {
  explicit Sender(Input& from) : in(from), machine("h", shape(from.byte() % 2 != 0), {}, {}, now) {}

  void act(const SendActions& actions) {
    for (const auto& action : actions) {
      if (const auto* acquired = std::get_if<AcquireReaders>(&action)) {
        for (const auto& tag : acquired->pages) {
          require(tag.page >= 0 && tag.page < given && tag.generation == 100);
          ++readers[tag.page];
        }
      } else if (const auto* released = std::get_if<ReleaseReaders>(&action)) {
        for (const auto& tag : released->pages) require(--readers[tag.page] >= 0);
      } else if (std::holds_alternative<SendFinished>(action)) {
        ++finished;
      } else if (const auto* frame = std::get_if<SendFrame>(&action)) {
        if (const auto* push = std::get_if<protocol::PushFrame>(&frame->frame)) {
          for (const auto& tag : push->pages) require(readers[tag.page] > 0);
        }
      }
    }
    require(finished <= 1);
  }

  void compute() {
    if (!admitted) {
      admitted = true;
      prompt.resize(1 + in.byte() % 20U);
      act(machine.on_admitted(prompt, "", "", {}, 0, now));
      return;
    }
    const auto& of = shape_of();
    const auto all = static_cast<int32_t>(of.blocks(prompt.size()) * of.groups());
    if (given < all) {
      std::vector<protocol::PageTag> fresh;
      for (uint32_t group = 0; group < of.groups(); ++group) fresh.push_back({given++, 100});
      return act(machine.on_pages(fresh, now));
    }
    if (layer < of.layers())
      return act(machine.on_progress(static_cast<int32_t>(layer++),
                                     static_cast<int32_t>(prompt.size()), now));
    act(machine.on_prefill_done({{.token = 1}}, now));
  }

  void step() {
    const PeerId peer = 1 + in.byte() % 2U;
    switch (in.byte() % 12) {
      case 0:
      case 1:
      case 2:
        return compute();
      case 3:
        return act(machine.on_open(peer, in.number(), kNonce, now, in.byte()));
      case 4: {
        protocol::GrantFrame grant{in.key(kNonce), {}, in.byte() % 4 != 0 ? 1 : in.number()};
        for (uint8_t i = in.byte() % 4; i > 0; --i)
          grant.first_missing.push_back(static_cast<int32_t>(in.number()));
        return act(machine.on_grant(peer, grant, now));
      }
      case 5:
        return act(machine.on_busy(peer, {in.key(kNonce), ""}, now));
      case 6:
        return machine.on_renew(peer, {in.key(kNonce)}, now);
      case 7:
        return act(machine.on_ack(peer, {in.key(kNonce), in.number()}, now));
      case 8:
        return act(machine.on_abort(peer, {in.key(kNonce), in.number(), "", "", in.number()}, now));
      case 9:
        return act(machine.on_abort_ack(peer, {in.key(kNonce), in.number()}, now));
      case 10:
        return act(machine.on_peer_lost(peer, now));
      default:
        now += std::chrono::seconds(in.byte() % 8);
        return act(machine.on_time(now));
    }
  }

  void end() {
    act(machine.on_cancel({499, "", ""}, now));
    for (const PeerId peer : {PeerId{1}, PeerId{2}}) act(machine.on_peer_lost(peer, now));
    require(machine.idle() && finished == 1);
    for (const auto& [page, count] : readers) require(count == 0);
  }

  const HandoffShape& shape_of() const { return shape(windows); }

  Input& in;
  bool windows = in.at != in.end && *in.at % 2 != 0;
  TimePoint now{};
  SendHandoff machine;
  std::vector<int32_t> prompt;
  bool admitted = false;
  int32_t given = 0;
  uint32_t layer = 0;
  int finished = 0;
  std::map<int32_t, int> readers;
};

struct Receiver {
  explicit Receiver(Input& from)
      : in(from), of(shape(from.byte() % 2 != 0)), machine("h", 1, of, {}) {
    act(machine.open(now));
  }

  void act(const ReceiveActions& actions) {
    for (const auto& action : actions) {
      if (std::holds_alternative<ReservePages>(action)) {
        reserving = true;
      } else if (const auto* copy = std::get_if<CopyPages>(&action)) {
        require(!released && copy->layer < of.layers() &&
                (copy->digests.empty() || copy->digests.size() == copy->source.size()));
        for (uint32_t i = 0; i < copy->source.size(); ++i) {
          const uint32_t block = copy->first_block + i;
          require(block < blocks && block >= first_of(copy->layer));
          require(!covered.contains({copy->layer, block}));
          require(copying.emplace(copy->layer, block).second);
        }
      } else if (std::holds_alternative<StartSequence>(action)) {
        require(copying.empty() && !released && !std::exchange(started, true));
        for (uint32_t layer = 0; layer < of.layers(); ++layer) {
          for (uint32_t block = first_of(layer); block < blocks; ++block)
            require(covered.contains({layer, block}));
        }
      } else if (std::holds_alternative<ReleasePages>(action)) {
        require(copying.empty() && !started && !std::exchange(released, true));
      } else if (std::holds_alternative<ReceiveFinished>(action)) {
        require(!std::exchange(finished, true));
      }
    }
    require(actions.size() < 64);
    if (machine.idle()) require(copying.empty());
  }

  uint32_t first_of(uint32_t layer) const {
    return first_missing[static_cast<size_t>(of.layer_groups[layer])];
  }

  void reserve() {
    if (!std::exchange(reserving, false) || released) return;
    if (in.byte() % 8 == 0) return act(machine.on_no_room({503, "", ""}));
    first_missing.clear();
    for (uint32_t group = 0; group < of.groups(); ++group)
      first_missing.push_back(in.byte() % (blocks + 1));
    act(machine.on_reserved(first_missing, now));
  }

  void copied(CopyResult result) {
    if (copying.empty()) return;
    const auto [layer, block] = *copying.begin();
    copying.erase(copying.begin());
    if (result == CopyResult::kIntact) covered.emplace(layer, block);
    act(machine.on_copied(layer, block, 1, result, now));
  }

  void offer() {
    protocol::OfferFrame frame{in.key(kNonce), std::vector<int32_t>(in.byte() % 20), "", 0, 0};
    frame.blocks = in.byte() % 8 == 0 ? in.number() : of.blocks(frame.tokens.size());
    const bool before = reserving;
    act(machine.on_offer(frame, now));
    if (!before && reserving) {
      blocks = frame.blocks;
      tokens = frame.tokens.size();
    }
  }

  void commit() {
    protocol::CommitFrame frame;
    frame.key = in.key(kNonce);
    const bool right = in.byte() % 4 != 0;
    frame.layers = right ? of.layers() : in.number();
    frame.blocks = right ? blocks : in.number();
    frame.first_blocks.assign(first_missing.begin(), first_missing.end());
    frame.bytes = right ? of.pages(first_missing, blocks) * of.page_bytes : in.number();
    frame.first_tokens.resize(in.byte() % 4 != 0 ? 1 : in.byte() % 3);
    frame.prompt_tokens = right ? static_cast<uint32_t>(tokens) : in.number();
    frame.cached_tokens = in.number();
    act(machine.on_commit(frame, now));
  }

  void step() {
    switch (in.byte() % 12) {
      case 0:
        return offer();
      case 1:
        return reserve();
      case 2:
      case 3:
      case 4: {
        protocol::PushFrame push{in.key(kNonce), in.number(), in.number(), in.tags(), {}};
        if (in.byte() % 4 == 0) push.digests.resize(in.byte() % 9);
        return act(machine.on_push(push, now));
      }
      case 5:
      case 6:
        return copied(CopyResult::kIntact);
      case 7:
        return commit();
      case 8:
        return act(machine.on_abort({in.key(kNonce), in.number(), "", "", in.number()}));
      case 9:
        if (in.byte() % 4 == 0) return copied(static_cast<CopyResult>(in.byte() % 5));
        return act(machine.on_started());
      case 10:
        if (in.byte() % 8 == 0) act(machine.on_cancel({499, "", ""}));
        return;
      default:
        now += std::chrono::seconds(in.byte() % 8);
        return act(machine.on_time(now));
    }
  }

  void end() {
    act(machine.on_peer_lost());
    while (!copying.empty()) copied(CopyResult::kFailed);
    act(machine.on_started());
    require(machine.idle() && finished);
  }

  Input& in;
  const HandoffShape& of;
  TimePoint now{};
  ReceiveHandoff machine;
  uint32_t blocks = 0;
  size_t tokens = 0;
  std::vector<uint32_t> first_missing;
  std::set<std::pair<uint32_t, uint32_t>> copying, covered;
  bool reserving = false, started = false, released = false, finished = false;
};

template <typename Side>
void play(Input in) {
  Side side(in);
  while (in.at != in.end) side.step();
  side.end();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Input in{data, data + size};
  play<Sender>(in);
  play<Receiver>(in);
  return 0;
}
