// KvObserver: hears which blocks a prefix index holds, from the thread that owns it: must not wait.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/content_id.h"

namespace tandem::kv {

class KvObserver {
 public:
  virtual ~KvObserver() = default;

  struct Stored {
    const protocol::ContentId* parent;  // null: a first block
    const protocol::ContentId& id;
    std::span<const int32_t> tokens;
    std::string_view adapter;         // empty: the model itself
    const protocol::ContentId& root;  // tells lineage, block size and salt
  };
  virtual void stored(const Stored& block) = 0;
  // Also of blocks that stored() never told of.
  virtual void removed(const protocol::ContentId& id) = 0;
};

}  // namespace tandem::kv
