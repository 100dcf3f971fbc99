#include "engine/kv_report.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/engine.h"

namespace tandem::engine {

std::string scope_text(uint64_t scope) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out(16, '0');
  for (size_t i = out.size(); i-- > 0; scope >>= 4) out[i] = kDigits[scope & 15];
  return out;
}

void Engine::cache_stat(std::function<void(const KvStat&)> done) {
  post([this, done = std::move(done)] {
    const kv::PagePool& pool = kv_.pool();
    const auto seen = guard_.incidents();
    KvStat stat{.level = guard_.level(),
                .dtype = arena_.layout.dtype,
                .block_tokens = arena_.layout.block_tokens,
                .page_groups = arena_.layout.groups,
                .page_bytes = arena_.layout.page_bytes(),
                .pages_total = kv_.page_count(),
                .pages_free = kv_.free_pages(),
                .pages_cached = kv_.cached_pages(),
                .pages_used = kv_.used_pages(),
                .pages_quarantined = pool.quarantined_count(),
                .quarantine_limit = pool.max_quarantined(),
                .index_blocks = kv_.index().size(),
                .index_bytes = kv_.index_bytes(),
                .evictions = kv_.evictions(),
                .incidents = seen.total,
                .scrubbed_pages = seen.scrubbed_pages,
                .scrub_behind_seconds = seen.scrub_behind_seconds};
    for (int32_t page = 0; page < pool.page_count(); ++page) {
      stat.filling += pool.state(page) == kv::PageState::kFilling ? 1 : 0;
      stat.verified += pool.state(page) == kv::PageState::kVerified ? 1 : 0;
      stat.published += pool.state(page) == kv::PageState::kPublished ? 1 : 0;
    }
    done(stat);
  });
}

void Engine::list_cache(KvListQuery query, std::function<void(KvListing)> done) {
  post([this, query = std::move(query), done = std::move(done)] {
    const kv::PagePool& pool = kv_.pool();
    KvListing listing;
    kv_.index().visit([&](const kv::PrefixIndex::Block& block) {
      std::string id = block.id->hex();
      if (!id.starts_with(query.prefix) || id <= query.after) return;
      KvListing::Block& out = listing.blocks.emplace_back();
      out.id = std::move(id);
      out.scope = scope_text(block.scope);
      out.tokens = static_cast<int32_t>(block.tokens);
      out.children = static_cast<int32_t>(block.children);
      for (const kv::PageTag tag : block.pages) {
        auto& page = out.pages.emplace_back();
        page.tag = tag;
        if (tag.page < 0) continue;
        page.state = pool.state(tag.page);
        page.owners = pool.owners(tag.page);
        page.readers = pool.readers(tag.page);
        page.writers = pool.writers(tag.page);
      }
      // Only the first `limit` are kept, and a few more to sort away.
      if (listing.blocks.size() < 4 * query.limit + 64) return;
      listing.more = true;
      std::ranges::nth_element(listing.blocks,
                               listing.blocks.begin() + static_cast<std::ptrdiff_t>(query.limit),
                               {}, &KvListing::Block::id);
      listing.blocks.resize(query.limit);
    });
    std::ranges::sort(listing.blocks, {}, &KvListing::Block::id);
    if (listing.blocks.size() > query.limit) {
      listing.more = true;
      listing.blocks.resize(query.limit);
    }
    done(std::move(listing));
  });
}

void Engine::drop_cache(KvDropQuery query, std::function<void(size_t)> done) {
  post([this, query = std::move(query), done = std::move(done)] {
    kv::DropFilter filter{.id_prefix = query.prefix};
    if (query.salt) filter.scope = kv_.scope_of(*query.salt);
    if (!query.scope.empty()) {
      uint64_t scope = 0;
      (void)std::from_chars(query.scope.data(), query.scope.data() + query.scope.size(), scope, 16);
      filter.scope = scope;
    }
    done(kv_.drop_cached(filter));
  });
}

void Engine::verify_cache(std::function<void(const Result<VerifyProgress>&)> tell) {
  post([this, tell = std::move(tell)] {
    auto begun = guard_.verify([tell](const VerifyProgress& progress) { tell(progress); });
    if (!begun) tell(tl::unexpected(begun.error()));
  });
}

void Engine::report_corrupt(CorruptCopy copy) {
  post([this, copy = std::move(copy)] { guard_.on_corrupt(copy); });
}

void Engine::recheck(SequenceId id) {
  post([this, id] {
    if (kv_.holds(id)) guard_.recheck(kv_.tags(id));
  });
}

}  // namespace tandem::engine
