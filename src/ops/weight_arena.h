// WeightArena: memory for the packed weights of one model, in few large pieces that the system can
// back with huge pages. A matrix of a small model is smaller than one such page; on pages of 4 KiB
// one row's product would spend a good part of its time on address translation.
//
// Used by one thread at a time. What it handed out lives as long as it does and cannot be given
// back by itself.
#pragma once

#include <cstddef>
#include <vector>

namespace tandem::ops {

class WeightArena {
 public:
  WeightArena() = default;
  ~WeightArena();
  WeightArena(WeightArena&& other) noexcept;
  WeightArena& operator=(WeightArena&& other) noexcept;

  // `bytes` zeros at a multiple of 64. Null when the memory cannot be had.
  std::byte* allocate(size_t bytes);

 private:
  struct Piece {
    std::byte* base;
    size_t bytes;
  };
  std::vector<Piece> pieces_;
  size_t used_ = 0;  // of the last piece
};

}  // namespace tandem::ops
