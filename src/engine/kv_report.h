// What an engine tells about its KV memory (`tandem kv`). Never tokens or text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/integrity/integrity.h"
#include "kv/pages/page_pool.h"
#include "ops/page_layout.h"

namespace tandem::engine {

struct KvStat {
  kv::IntegrityLevel level = kv::IntegrityLevel::kOff;
  ops::KvDtype dtype = ops::KvDtype::kBF16;
  int32_t block_tokens = 0;
  int32_t page_groups = 0;
  uint64_t page_bytes = 0;
  int32_t pages_total = 0;
  int32_t pages_free = 0;
  int32_t pages_cached = 0;
  int32_t pages_used = 0;
  int32_t pages_quarantined = 0;
  int32_t quarantine_limit = 0;
  int32_t filling = 0;  // pages by state
  int32_t verified = 0;
  int32_t published = 0;
  uint64_t index_blocks = 0;
  uint64_t index_bytes = 0;
  uint64_t evictions = 0;
  uint64_t incidents = 0;
  uint64_t scrubbed_pages = 0;
  double scrub_behind_seconds = 0;
};

struct KvListQuery {
  std::string prefix = {};  // of the block's id, in hexadecimal
  std::string after = {};   // an id: blocks behind it, in the order of ids
  size_t limit = 100;
};

struct KvListing {
  struct Page {
    kv::PageTag tag;
    kv::PageState state = kv::PageState::kFree;
    uint32_t owners = 0;
    uint32_t readers = 0;
    uint32_t writers = 0;
  };
  struct Block {
    std::string id;
    std::string scope;  // of its salt and model
    int32_t tokens = 0;
    int32_t children = 0;
    std::vector<Page> pages;  // by page group; page -1: not there
  };
  std::vector<Block> blocks;  // ascending by id
  bool more = false;          // beyond the limit
};

// Which unused cached blocks to give up; nothing set: all.
struct KvDropQuery {
  std::string prefix = {};
  std::optional<std::string> salt = {};
  std::string scope = {};  // as listed
};

std::string scope_text(uint64_t scope);  // 16 hexadecimal digits

}  // namespace tandem::engine
