// How bytes travel: block by block, each in two halves with time between them, then the check of
// the source page's generation. Mirrors kv/transfer's reads.
#include <algorithm>
#include <utility>

#include "sim/node.h"
#include "sim/world.h"

namespace tandem::sim {

using kv::CopyResult;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

void Node::begin_copy(uint64_t key, const kv::CopyPages& action) {
  const Receiving& receiving = receiving_.at(key);
  auto copy = std::make_shared<Copy>();
  copy->peer = receiving.peer;
  copy->key = key;
  copy->into = arena_;
  copy->layer = action.layer;
  copy->first_block = action.first_block;
  copy->source = action.source;
  for (size_t i = 0; i < action.source.size(); ++i) {
    copy->target.push_back(
        receiving.pages[world_.layout().entry(action.first_block + i, action.layer)]);
  }
  copy->deadline = world_.now() + seconds(2);
  const auto peer = peers_.find(receiving.peer);
  if (peer == peers_.end() || peer->second.memory == nullptr) {
    post(kReactor, [this, copy] { end_copy(copy, CopyResult::kFailed); });
    return;
  }
  copy->from_node = peer->second.node;
  copy->from_start = peer->second.start;
  copy->from = peer->second.memory;
  if (world_.plan().slowest_copy == Duration{}) {
    copy_at_once(copy);
    return;
  }
  world_.copies().push_back(copy);
  world_.moment(Moment::kCopyBegan, id_);
  world_.loop().after(
      draw(microseconds(1), world_.plan().slowest_copy),
      [this, copy, start = start_] { tell(start, [this, copy] { step_copy(copy); }); });
}

// On the reactor, while it handles PUSH: nothing comes between.
void Node::copy_at_once(const std::shared_ptr<Copy>& copy) {
  CopyResult result = reaches(*copy) ? CopyResult::kIntact : CopyResult::kFailed;
  if (fails_now()) result = CopyResult::kFailed;
  world_.moment(Moment::kCopyBegan, id_);
  for (; copy->next < copy->source.size() && result == CopyResult::kIntact; ++copy->next) {
    copy_words(*copy, false);
    copy_words(*copy, true);
    if (is_stale(*copy)) result = CopyResult::kStale;
  }
  run_receive(copy->key, receiving_.at(copy->key).handoff.on_copied(
                             copy->layer, copy->first_block,
                             static_cast<uint32_t>(copy->source.size()), result, world_.now()));
}

bool Node::fails_now() {
  return (copies_to_fail_ > 0 && copies_to_fail_-- > 0) ||
         (world_.plan().copy_failures > 0 && world_.random().chance(world_.plan().copy_failures));
}

// After the page at `next` was read.
bool Node::is_stale(const Copy& copy) const {
  const kv::PageTag tag = copy.source[copy.next];
  return copy.from->generations[static_cast<size_t>(tag.page)] != tag.generation &&
         !world_.broken(Break::kI2);
}

// Shared memory can be read whatever became of its owner.
bool Node::reaches(const Copy& copy) const {
  if (world_.plan().shared_memory) return true;
  Node& from = world_.node(copy.from_node);
  return from.start() == copy.from_start && !from.frozen() &&
         !world_.network().is_cut(id_, copy.from_node);
}

void Node::copy_words(Copy& copy, bool second_half) const {
  const Layout& layout = world_.layout();
  const int32_t half = layout.block_tokens / 2;
  const int32_t first = layout.offset(copy.layer) + (second_half ? half : 0);
  const int32_t count = second_half ? layout.block_tokens - half : half;
  std::copy_n(copy.from->page(copy.source[copy.next].page) + first, count,
              copy.into->page(copy.target[copy.next].page) + first);
}

void Node::step_copy(const std::shared_ptr<Copy>& copy) {
  const auto again = [&](Duration delay) {
    world_.loop().after(
        delay, [this, copy, start = start_] { tell(start, [this, copy] { step_copy(copy); }); });
  };
  const bool late = world_.now() >= copy->deadline && !reaches(*copy);
  if (copy->stopped || fails_now() || late) {
    if (world_.plan().fenced_copies) return end_copy(copy, CopyResult::kFailed);
    // The transport cannot take its request back: it may be carried out much later.
    world_.loop().after(draw({}, seconds(5)), [this, copy, start = start_] {
      if (start == start_ && up_) copy_words(*copy, copy->half);
    });
    return end_copy(copy, CopyResult::kUnfenced);
  }
  if (!reaches(*copy)) return again(milliseconds(50));
  copy_words(*copy, copy->half);
  const bool second = std::exchange(copy->half, !copy->half);
  if (!second) {
    world_.moment(Moment::kCopyHalf, id_);
    return again(draw(microseconds(1), world_.plan().slowest_copy));
  }
  if (is_stale(*copy)) return end_copy(copy, CopyResult::kStale);
  const auto block = static_cast<uint32_t>(copy->next++);
  if (copy->next == copy->source.size()) std::erase(world_.copies(), copy);
  answer_copy(copy, block, 1, CopyResult::kIntact);
  if (copy->next < copy->source.size()) again(draw(microseconds(1), world_.plan().slowest_copy));
}

// The block at `next` and those after it.
void Node::end_copy(const std::shared_ptr<Copy>& copy, CopyResult result) {
  std::erase(world_.copies(), copy);
  const auto next = static_cast<uint32_t>(copy->next);
  answer_copy(copy, next, static_cast<uint32_t>(copy->source.size()) - next, result);
}

void Node::answer_copy(const std::shared_ptr<Copy>& copy, uint32_t block, uint32_t count,
                       CopyResult result) {
  post(kReactor, [this, key = copy->key, layer = copy->layer, first = copy->first_block + block,
                  count, result] {
    const auto at = receiving_.find(key);
    if (at == receiving_.end()) return;
    run_receive(key, at->second.handoff.on_copied(layer, first, count, result, world_.now()));
  });
}

}  // namespace tandem::sim
