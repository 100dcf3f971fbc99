// KvManager against a simple reference, over thousands of random histories.
//
// The reference is what a device would see. Every position of every group gets a value that only
// its tokens, salt and group determine; passes run in order, through the page tables as they were
// when the pass was planned, as late as they may; each row then must read the right value at every
// position that its window shows. So a page that is freed while needed, shared wrongly, published
// before its bytes are there or reused under a reader gives a wrong value. Owners are counted
// beside.
#include <cstring>
#include <deque>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "kv/manager/kv_manager.h"
#include "protocol/page_window.h"

namespace tandem::kv {
namespace {

constexpr int32_t kBlock = 8;
constexpr size_t kStride = 512;

struct Live {
  std::vector<int32_t> tokens;
  std::string salt;
  size_t prompt = 0;
  int32_t computed = 0;
  int32_t scheduled = 0;
  int out = 0;
  bool trim = false;  // rolled back, with passes out
};
struct Pass {
  SequenceId id;
  int32_t first;
  std::vector<int32_t> tokens;  // up to its last row
  std::string salt;
  std::vector<int32_t> pages;
  bool stale = false;
};
struct Receiving {
  std::vector<int32_t> tokens;
  std::string salt;
  KvManager::Reservation reservation;
};
struct Reading {
  std::vector<PageTag> tags;
  std::vector<std::vector<std::byte>> bytes;
};

class History {
 public:
  explicit History(unsigned seed) : random_(seed) {
    static const std::vector<std::vector<int32_t>> kShapes = {{0},  {0, 0}, {0, 12}, {0, 5, 20},
                                                              {16}, {0, 1}, {12, 30}};
    windows_ = kShapes[seed % kShapes.size()];
    chunk_ = 1 + pick(20);
    const int32_t pages = (12 + pick(seed % 3 == 0 ? 400 : 50)) * groups();
    memory_.assign(kStride * static_cast<size_t>(pages), std::byte{0xEE});
    kv_.emplace(KvManagerOptions{.page_count = pages,
                                 .block_tokens = kBlock,
                                 .lineage = "m",
                                 .index_bytes = size_t{seed % 5 == 0 ? 6000U : 1U << 20},
                                 .windows = windows_,
                                 .rows_in_flight = chunk_ * kPassesOut,
                                 .roll_back_tokens = pick(12)},
                PageMemory{.copy = [this](int32_t from, int32_t to) {
                  std::memcpy(bytes_of(to), bytes_of(from), kPageBytes);
                }});
    longest_ = std::min(kv_->demand().longest(pages, 160), 160);
    for (auto& stem : stems_) stem = some_tokens(160);
  }

  void run() {
    for (int step = 0; step < 250 && !::testing::Test::HasFatalFailure(); ++step) {
      act();
      if (step % 4 == 0) check_counts();  // a wrong count stays wrong
    }
    check_counts();
    wind_up();
  }

 private:
  static constexpr int kPassesOut = 2;
  static constexpr size_t kPageBytes = size_t{kBlock} * sizeof(uint64_t);
  std::byte* bytes_of(int32_t index) {
    return memory_.data() + static_cast<size_t>(index) * kStride;
  }
  int32_t pick(int32_t below) {
    return static_cast<int32_t>(random_() % static_cast<unsigned>(below));
  }
  int32_t groups() const { return static_cast<int32_t>(windows_.size()); }
  std::vector<int32_t> some_tokens(int32_t count) {
    std::vector<int32_t> out(static_cast<size_t>(count));
    for (auto& token : out) token = pick(2);
    return out;
  }
  std::vector<int32_t> some_prompt() {
    const int32_t size = 1 + pick(longest_ - 1);
    std::vector<int32_t> out = stems_[static_cast<size_t>(pick(3))];
    const int32_t shared = pick(3) == 0 ? pick(size + 1) : size;
    out.resize(static_cast<size_t>(shared));
    const auto tail = some_tokens(size - shared);
    out.insert(out.end(), tail.begin(), tail.end());
    return out;
  }
  std::string some_salt() { return pick(4) == 0 ? "b" : "a"; }

  // Values by position, for one group.
  std::vector<uint64_t> values(const std::vector<int32_t>& tokens, const std::string& salt,
                               int32_t group) const {
    uint64_t value =
        1469598103934665603ULL + static_cast<uint64_t>(group) * 77777 + (salt == "b" ? 999 : 0);
    std::vector<uint64_t> out;
    for (const int32_t token : tokens) {
      value = (value ^ static_cast<uint64_t>(token + 1)) * 1099511628211ULL;
      value ^= value >> 29;
      out.push_back(value);
    }
    return out;
  }
  std::byte* at(int32_t page, int32_t position) {
    return bytes_of(page) + static_cast<size_t>(position % kBlock) * sizeof(uint64_t);
  }

  void act() {
    switch (pick(12)) {
      case 0:
        return admit(next_id_++, some_prompt(), some_salt());
      case 1:
        return reserve();
      case 2:
        return end_receiving(pick(3) != 0);
      case 3:
        return roll_back();
      case 4:
        return release_one();
      case 5:
        return pick(2) == 0 ? read() : end_reading();
      case 6:
      case 7:
      case 8:
        return plan();
      default:
        return complete();
    }
  }

  void admit(SequenceId id, std::vector<int32_t> tokens, const std::string& salt) {
    const int32_t used = kv_->used_pages();
    const auto cached = kv_->admit(id, tokens, {.salt = salt}, pick(3));
    if (!cached) {
      ASSERT_EQ(kv_->used_pages(), used) << "a refused admission takes nothing";
      return;
    }
    ASSERT_EQ(*cached % kBlock, 0);
    ASSERT_LT(*cached, static_cast<int32_t>(tokens.size()));
    if (kv_->evictions() == 0 && !received_) {
      ASSERT_EQ(*cached, known_prefix(tokens, salt)) << "nothing was evicted";
    }
    Live& live = live_[id];
    live.prompt = tokens.size();
    live.tokens = std::move(tokens);
    live.salt = salt;
    live.computed = live.scheduled = *cached;
  }

  // The longest run of whole blocks that was computed by anybody.
  int32_t known_prefix(const std::vector<int32_t>& tokens, const std::string& salt) const {
    int32_t best = 0;
    for (const auto& [known, known_salt] : known_) {
      if (known_salt != salt) continue;
      size_t same = 0;
      while (same < known.size() && same < tokens.size() && known[same] == tokens[same]) ++same;
      same = std::min(same, tokens.size() - 1);
      best = std::max(best, static_cast<int32_t>(same) / kBlock * kBlock);
    }
    return best;
  }

  Live* some_live(SequenceId& id) {
    if (live_.empty()) return nullptr;
    auto found = live_.begin();
    std::advance(found, pick(static_cast<int32_t>(live_.size())));
    id = found->first;
    return &found->second;
  }

  void plan() {
    SequenceId id = 0;
    Live* live = some_live(id);
    if (live == nullptr || live->trim || passes_.size() >= kPassesOut) return;
    const bool prefill = live->scheduled < static_cast<int32_t>(live->prompt);
    if (live->scheduled == static_cast<int32_t>(live->tokens.size())) {
      if (static_cast<int32_t>(live->tokens.size()) >= longest_) return;
      live->tokens.push_back(pick(2));  // a generated token
    }
    const int32_t left = static_cast<int32_t>(live->tokens.size()) - live->scheduled;
    const int32_t rows = std::min(left, prefill ? chunk_ : 1);
    const bool fits = kv_->extend(id, live->scheduled + rows);
    if (!fits) {
      ASSERT_FALSE(prefill && readings_.empty() && live->tokens.size() == live->prompt)
          << "what admission promised is there";
      return;
    }
    Pass pass{.id = id, .first = live->scheduled, .tokens = {}, .salt = live->salt, .pages = {}};
    pass.tokens.assign(live->tokens.begin(), live->tokens.begin() + live->scheduled + rows);
    const auto pages = kv_->pages(id, live->scheduled + rows);
    pass.pages.assign(pages.begin(), pages.end());
    passes_.push_back(std::move(pass));
    live->scheduled += rows;
    ++live->out;
  }

  void execute(const Pass& pass) {
    const auto size = static_cast<int32_t>(pass.tokens.size());
    for (int32_t group = 0; group < groups(); ++group) {
      const auto wanted = values(pass.tokens, pass.salt, group);
      const int32_t window = windows_[static_cast<size_t>(group)];
      const auto page_of = [&](int32_t position) {
        return pass.pages.at(static_cast<size_t>(position / kBlock * groups() + group));
      };
      for (int32_t row = pass.first; row < size; ++row) {
        ASSERT_GE(page_of(row), 0);
        std::memcpy(at(page_of(row), row), &wanted[static_cast<size_t>(row)], sizeof(uint64_t));
      }
      for (const int32_t row : {pass.first, size - 1}) {
        for (int32_t p = window > 0 ? std::max(row - window + 1, 0) : 0; p <= row; ++p) {
          ASSERT_GE(page_of(p), 0) << "given back while row " << row << " sees " << p;
          uint64_t value = 0;
          std::memcpy(&value, at(page_of(p), p), sizeof value);
          ASSERT_EQ(value, wanted[static_cast<size_t>(p)])
              << "group " << group << ", row " << row << ", position " << p;
        }
      }
    }
  }

  void complete() {
    if (passes_.empty()) return;
    const Pass pass = std::move(passes_.front());
    passes_.pop_front();
    execute(pass);
    Live& live = live_.at(pass.id);
    --live.out;
    if (pass.stale) {
      if (live.out == 0) trim(pass.id);
      return;
    }
    live.computed = static_cast<int32_t>(pass.tokens.size());
    kv_->computed(pass.id, live.tokens, live.computed);
    known_.emplace_back(pass.tokens, live.salt);
  }

  void roll_back() {
    SequenceId id = 0;
    Live* live = some_live(id);
    if (live == nullptr || live->trim || live->tokens.size() == live->prompt) return;
    const int32_t count = 1 + pick(static_cast<int32_t>(live->tokens.size() - live->prompt));
    live->tokens.resize(live->tokens.size() - static_cast<size_t>(count));
    live->computed = live->scheduled =
        std::min(live->computed, static_cast<int32_t>(live->tokens.size()) - 1);
    for (Pass& pass : passes_) pass.stale = pass.stale || pass.id == id;
    live->trim = true;
    if (live->out == 0) trim(id);
  }

  void trim(SequenceId id) {
    Live& live = live_.at(id);
    live.trim = false;
    if (kv_->truncate(id, static_cast<int32_t>(live.tokens.size()), live.computed)) return;
    // As the scheduler does: it is computed again.
    const Live again = live;
    kv_->release(id);
    live_.erase(id);
    admit(id, again.tokens, again.salt);
    if (live_.contains(id)) live_[id].prompt = again.prompt;
  }

  void release_one() {
    SequenceId id = 0;
    const Live* live = some_live(id);
    if (live == nullptr || live->out > 0) return;
    kv_->release(id);
    live_.erase(id);
  }

  void reserve() {
    const SequenceId id = next_id_++;
    auto tokens = some_prompt();
    const auto salt = some_salt();
    const int32_t used = kv_->used_pages();
    auto reservation = kv_->reserve(id, tokens, {.salt = salt}, pick(2) * pick(longest_));
    if (!reservation) {
      ASSERT_EQ(kv_->used_pages(), used);
      return;
    }
    received_ = true;
    receiving_[id] = {std::move(tokens), salt, std::move(*reservation)};
  }

  void end_receiving(bool good) {
    if (receiving_.empty()) return;
    const auto found = receiving_.begin();
    const auto id = found->first;
    const Receiving received = std::move(found->second);
    receiving_.erase(found);
    const auto size = static_cast<int32_t>(received.tokens.size());
    const int32_t blocks = (size + kBlock - 1) / kBlock;
    for (int32_t group = 0; group < groups(); ++group) {
      const auto wanted = values(received.tokens, received.salt, group);
      for (int32_t block =
               static_cast<int32_t>(received.reservation.first_missing[static_cast<size_t>(group)]);
           block < blocks; ++block) {
        const PageTag tag =
            received.reservation.pages[static_cast<size_t>(block * groups() + group)];
        ASSERT_EQ(kv_->pool().writers(tag.page), 1U);
        for (int32_t p = block * kBlock; p < std::min(size, (block + 1) * kBlock); ++p)
          std::memcpy(at(tag.page, p), &wanted[static_cast<size_t>(p)], sizeof(uint64_t));
        if (!good && pick(2) == 0) break;  // a part arrived
      }
    }
    if (!good) return kv_->receive_failed(id);
    kv_->receive_done(id, received.tokens);
    live_[id] = {received.tokens, received.salt, received.tokens.size(), size, size};
  }

  void read() {
    SequenceId id = 0;
    const Live* live = some_live(id);
    // Only what is final is read.
    if (live == nullptr || live->computed < static_cast<int32_t>(live->prompt) || live->trim)
      return;
    Reading reading;
    const auto tags = kv_->tags(id);
    const size_t whole = static_cast<size_t>(live->computed / kBlock * groups());
    for (size_t i = 0; i < std::min(whole, tags.size()); ++i) {
      if (tags[i].page < 0 || pick(2) == 0) continue;
      reading.tags.push_back(tags[i]);
      const std::byte* page = bytes_of(tags[i].page);
      reading.bytes.emplace_back(page, page + kBlock * sizeof(uint64_t));
    }
    kv_->add_readers(reading.tags);
    readings_.push_back(std::move(reading));
  }

  void end_reading() {
    if (readings_.empty()) return;
    const Reading reading = std::move(readings_.front());
    readings_.pop_front();
    for (size_t i = 0; i < reading.tags.size(); ++i) {
      ASSERT_TRUE(kv_->pool().is_current(reading.tags[i]));
      ASSERT_EQ(std::memcmp(bytes_of(reading.tags[i].page), reading.bytes[i].data(),
                            reading.bytes[i].size()),
                0)
          << "reused under a reader";
    }
    kv_->drop_readers(reading.tags);
  }

  void check_counts() {
    const auto pages = static_cast<size_t>(kv_->page_count());
    std::vector<uint32_t> owners(pages, 0);
    std::vector<uint32_t> readers(pages, 0);
    const auto count = [&](SequenceId id) {
      for (const PageTag tag : kv_->tags(id)) {
        if (tag.page >= 0) ++owners[static_cast<size_t>(tag.page)];
      }
    };
    for (const auto& [id, live] : live_) count(id);
    for (const auto& [id, receiving] : receiving_) count(id);
    for (const auto& reading : readings_) {
      for (const PageTag tag : reading.tags) ++readers[static_cast<size_t>(tag.page)];
    }
    int32_t used = 0;
    bool right = true;
    for (size_t i = 0; i < pages; ++i) {
      const auto page = static_cast<int32_t>(i);
      const uint32_t more = kv_->pool().owners(page) - owners[i];  // the index may own it too
      right = right && more <= 1 && kv_->pool().readers(page) == readers[i];
      used += owners[i] > 0 || readers[i] > 0 ? 1 : 0;
    }
    ASSERT_TRUE(right) << "a count differs";
    ASSERT_EQ(kv_->used_pages(), used);
  }

  void wind_up() {
    if (::testing::Test::HasFatalFailure()) return;
    while (!passes_.empty()) complete();
    while (!receiving_.empty()) end_receiving(false);
    for (const auto& [id, live] : live_) kv_->release(id);
    live_.clear();
    while (!readings_.empty()) end_reading();
    ASSERT_EQ(kv_->used_pages(), 0);
    // Everything that is cached can be had.
    const int32_t longest = kv_->demand().longest(kv_->page_count(), 100000);
    ASSERT_TRUE(kv_->admit(next_id_, some_tokens(longest), {.salt = "c"}, 0));
    kv_->release(next_id_);
    ASSERT_EQ(kv_->used_pages(), 0);
  }

  std::mt19937 random_;
  std::vector<int32_t> windows_;
  int32_t chunk_ = 1;
  int32_t longest_ = 0;
  std::vector<std::byte> memory_;
  std::optional<KvManager> kv_;
  std::array<std::vector<int32_t>, 3> stems_;
  SequenceId next_id_ = 1;
  bool received_ = false;
  std::map<SequenceId, Live> live_;
  std::map<SequenceId, Receiving> receiving_;
  std::deque<Pass> passes_;
  std::deque<Reading> readings_;
  std::vector<std::pair<std::vector<int32_t>, std::string>> known_;
};

TEST(KvManagerModel, RandomHistoriesMatchTheReference) {
  for (unsigned seed = 0; seed < 560; ++seed) {
    History(seed).run();
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tandem::kv
