// How pages come over, of HandoffService: each CopyPages is a fetch of one layer (page_fetcher.h),
// which reads the bytes, compares the pages' generations, and runs the step between arrival and
// use. The answers go to the pure machine.
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "observe/log.h"
#include "worker/handoff_service.h"

namespace tandem::worker {

void HandoffService::copy(uint64_t key, const kv::CopyPages& action) {
  Receiving& receiving = receiving_.at(key);
  const auto peer = peers_.find(receiving.peer);
  if (peer == peers_.end()) {
    on_copied(key, action.layer, action.first_block, static_cast<uint32_t>(action.source.size()),
              kv::CopyResult::kFailed);
    return;
  }
  const auto importer = peer->second.importer;
  const ops::LayerPlace place = places_[action.layer];
  kv::FetchRequest request;
  const LayerCut& cut = importer->cut(action.layer);
  request.offset = cut.source_offset;
  request.bytes = cut.bytes;
  request.view = cut.view;
  request.source = action.source;
  request.target.reserve(action.source.size());
  for (size_t i = 0; i < action.source.size(); ++i) {
    const size_t block = action.first_block + i;
    const kv::PageTag target =
        receiving.pages.pages[block * shape_.groups() + static_cast<size_t>(place.group)];
    request.target.push_back(arena_.pages() +
                             static_cast<size_t>(target.page) * arena_.shape().page_stride +
                             cut.target_offset);
  }
  auto own = std::make_shared<std::vector<uint64_t>>();
  request.step = step(peer->second, receiving, action, request.target, own);
  receiving.bytes += request.bytes * action.source.size();
  fetcher_->fetch(key, receiving.peer, std::move(request),
                  [this, key, own, layer = action.layer, block = action.first_block](
                      size_t first, size_t count, kv::CopyResult result) {
                    keep_digests(key, layer, block, *own, first, count);
                    on_copied(key, layer, block + static_cast<uint32_t>(first),
                              static_cast<uint32_t>(count), result);
                  });
}

void HandoffService::keep_digests(uint64_t key, uint32_t layer, uint32_t first_block,
                                  std::span<const uint64_t> own, size_t first, size_t count) {
  const auto at = receiving_.find(key);
  if (own.empty() || at == receiving_.end()) return;
  const size_t blocks = shape_.blocks(at->second.tokens.size());
  auto& kept = at->second.digests;
  kept.resize(places_.size() * blocks);
  for (size_t i = first; i < first + count; ++i) kept[layer * blocks + first_block + i] = own[i];
}

// Between arrival and use: what the sender describes is its own form of the bytes (with digests on
// they travel so); what is kept describes this worker's.
kv::PageStep HandoffService::step(const Peer& peer, const Receiving& receiving,
                                  const kv::CopyPages& action,
                                  const std::vector<std::byte*>& target,
                                  const std::shared_ptr<std::vector<uint64_t>>& own) {
  kv::PageStep out;
  out.staged = peer.importer->converts();
  if (!out.staged && !digests_.looks()) return out;
  if (digests_.on()) own->resize(action.source.size());
  std::vector<kv::PageTag> here;
  here.reserve(action.source.size());
  const auto group = static_cast<size_t>(places_[action.layer].group);
  for (size_t i = 0; i < action.source.size(); ++i)
    here.push_back(receiving.pages.pages[(action.first_block + i) * shape_.groups() + group]);
  out.finish = [this, importer = peer.importer, shape = peer.shape, action, target, own,
                here = std::move(here), tokens = receiving.tokens.size(),
                sequence = receiving.pages.id, request = receiving.request.context.request_id](
                   size_t index, std::span<const std::byte> arrived) {
    const auto block = static_cast<int64_t>(action.first_block + index);
    const BlockPart part{.layer = static_cast<int32_t>(action.layer),
                         .block = block,
                         .length = digests_.length(block, tokens)};
    std::optional<uint64_t> described;
    if (!action.digests.empty()) described = action.digests[index];
    uint64_t found = 0;
    // The memory is this worker's own: a planted fault may change it.
    const std::span<std::byte> bytes(const_cast<std::byte*>(arrived.data()), arrived.size());
    const auto result = digests_.arrived(*shape, part, bytes, described, found);
    if (result == kv::CopyResult::kCorrupt) {
      engine_.report_corrupt({.sequence = sequence,
                              .request = request,
                              .layer = part.layer,
                              .block = block,
                              .group = places_[action.layer].group,
                              .source = action.source[index],
                              .target = here[index],
                              .described = *described,
                              .found = found});
      return result;
    }
    if (importer->converts()) {
      importer->convert(part.layer, arrived.data(), target[index]);
      if (digests_.on()) found = digests_.of(part, part_of(here[index], action.layer));
    }
    if (digests_.on()) (*own)[index] = found;
    return kv::CopyResult::kIntact;
  };
  return out;
}

void HandoffService::on_copied(uint64_t key, uint32_t layer, uint32_t first_block, uint32_t count,
                               kv::CopyResult result) {
  if (result == kv::CopyResult::kUnfenced) count_unfenced(0);  // the fetcher lost a slot
  if (const auto at = receiving_.find(key); at != receiving_.end())
    run_receive(key, at->second.handoff.on_copied(layer, first_block, count, result, now()));
}

// Pages that may still be written stay out of use until this process ends, and so do the fetcher's
// slots; when that takes too many, it must.
void HandoffService::count_unfenced(size_t pages) {
  unfenced_pages_ += pages;
  if (unfenced_pages_ <= options_.max_unfenced_pages && !fetcher_->worn_out()) return;
  if (must_restart_.exchange(true)) return;
  observe::log_error(
      "{} pages and {} of the transfers' buffers may still be written by transfers that cannot be "
      "stopped: this worker must restart",
      unfenced_pages_, fetcher_->lost_slots());
  if (options_.on_must_restart) options_.on_must_restart();
}

}  // namespace tandem::worker
