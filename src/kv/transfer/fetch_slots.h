// FetchSlots: fixed pieces of registered memory, one for each batch in flight: room for its pages'
// generations, and a stage for bytes that are converted on their way into the page.
//
// The memory is reserved at once and committed by the system as it is touched. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::kv {

class FetchSlots {
 public:
  static constexpr size_t kMaxPages = 512;  // of one batch
  FetchSlots(size_t count, size_t stage_bytes);
  ~FetchSlots();
  FetchSlots(const FetchSlots&) = delete;
  FetchSlots& operator=(const FetchSlots&) = delete;

  std::span<std::byte> memory() const { return {base_, bytes_}; }
  size_t stage_bytes() const { return stage_bytes_; }
  int take();  // -1: all are in use
  void give_back(int slot) { free_.push_back(slot); }
  void lose() { ++lost_; }  // something may still write into it: never used again
  size_t lost() const { return lost_; }

  std::byte* generations(int slot) const { return base_ + static_cast<size_t>(slot) * slot_bytes_; }
  std::byte* stage(int slot) const { return generations(slot) + kMaxPages * sizeof(uint64_t); }

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  size_t slot_bytes_;
  size_t stage_bytes_;
  size_t lost_ = 0;
  std::vector<int> free_;
};

}  // namespace tandem::kv
