// How pages come over, of HandoffService: each CopyPages is a fetch of one layer (page_fetcher.h),
// which reads the bytes, compares the pages' generations, and runs the step between arrival and
// use. The answers go to the pure machine.
#include <utility>

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
  request.offset = importer->source_offset(place.slot);
  request.bytes = importer->source_layer_bytes();
  request.source = action.source;
  request.target.reserve(action.source.size());
  for (size_t i = 0; i < action.source.size(); ++i) {
    const size_t block = action.first_block + i;
    const kv::PageTag target =
        receiving.pages.pages[block * shape_.groups() + static_cast<size_t>(place.group)];
    request.target.push_back(arena_.pages() +
                             static_cast<size_t>(target.page) * arena_.shape().page_stride +
                             importer->target_offset(place.slot));
  }
  request.step = step(importer, action.layer, request.target);
  receiving.bytes += request.bytes * action.source.size();
  fetcher_->fetch(key, receiving.peer, std::move(request),
                  [this, key, layer = action.layer, block = action.first_block](
                      size_t first, size_t count, kv::CopyResult result) {
                    on_copied(key, layer, block + static_cast<uint32_t>(first),
                              static_cast<uint32_t>(count), result);
                  });
}

// Between arrival and use.
kv::PageStep HandoffService::step(const std::shared_ptr<const PageImporter>& importer,
                                  uint32_t layer, const std::vector<std::byte*>& target) {
  kv::PageStep out;
  if (!importer->converts()) return out;
  out.staged = true;
  out.finish = [importer, layer, target](size_t index, std::span<const std::byte> arrived) {
    importer->convert(static_cast<int32_t>(layer), arrived.data(), target[index]);
    return kv::CopyResult::kIntact;
  };
  return out;
}

void HandoffService::on_copied(uint64_t key, uint32_t layer, uint32_t first_block, uint32_t count,
                               kv::CopyResult result) {
  if (result == kv::CopyResult::kUnfenced) {
    // Their pages stay out of use until this process ends; when that takes too many, it must.
    unfenced_pages_ += count;
    if (unfenced_pages_ > options_.max_unfenced_pages && !must_restart_.exchange(true)) {
      observe::log_error(
          "{} pages may still be written by transfers that cannot be stopped: this worker must "
          "restart",
          unfenced_pages_);
      if (options_.on_must_restart) options_.on_must_restart();
    }
  }
  if (const auto at = receiving_.find(key); at != receiving_.end())
    run_receive(key, at->second.handoff.on_copied(layer, first_block, count, result, now()));
}

}  // namespace tandem::worker
