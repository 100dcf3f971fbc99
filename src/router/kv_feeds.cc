#include "router/kv_feeds.h"

#include <charconv>
#include <utility>

namespace tandem::router {

namespace {

constexpr size_t kShortChain = 128;  // blocks that are no matter
constexpr Duration kTendEvery = std::chrono::milliseconds(250);
// Topics of one feed are told apart below, feeds above.
constexpr uint32_t kStreams = 64;

std::string with_host(std::string endpoint, const std::string& host) {
  constexpr std::string_view kTcp = "tcp://";
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with(kTcp) || colon < kTcp.size()) return endpoint;
  const std::string bound = endpoint.substr(kTcp.size(), colon - kTcp.size());
  if (bound != "*" && bound != "0.0.0.0" && bound != "::" && bound != "[::]") return endpoint;
  const bool bare_v6 = host.find(':') != std::string::npos && !host.starts_with("[");
  return std::string(kTcp) + (bare_v6 ? "[" + host + "]" : host) + endpoint.substr(colon);
}

std::string of_rank(const std::string& endpoint, int32_t rank) {
  const size_t colon = endpoint.rfind(':');
  if (rank == 0 || colon == std::string::npos) return endpoint;
  int port = 0;
  const char* const end = endpoint.data() + endpoint.size();
  if (std::from_chars(endpoint.data() + colon + 1, end, port).ptr != end) return endpoint;
  return endpoint.substr(0, colon + 1) + std::to_string(port + rank);
}

TimePoint clock_now() { return std::chrono::steady_clock::now(); }

}  // namespace

KvSource parse_kv_source(std::string_view text, const std::string& host) {
  KvSource source;
  const size_t comma = text.find(',');
  source.endpoint = with_host(std::string(text.substr(0, comma)), host);
  if (comma != std::string_view::npos)
    source.replay_endpoint = with_host(std::string(text.substr(comma + 1)), host);
  return source;
}

KvFeeds::KvFeeds(PrefixHolders& holders)
    : holders_(holders),
      subscriber_({.deliver = [this](events::FeedId feed, uint32_t stream,
                                     std::string_view payload) { deliver(feed, stream, payload); },
                   .reset = [this](events::FeedId feed, uint32_t stream) { reset(feed, stream); },
                   .tick = [this] { tend(); }}) {}

void KvFeeds::listen(uint32_t worker, const std::string& model, const KvSource& source) {
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = listened_.try_emplace(worker);
  Listened& listened = at->second;
  if (!fresh && listened.model == model && listened.source == source) return;
  close(listened);
  listened.model = model;
  listened.source = source;
  holders_.describe(worker, model, !source.endpoint.empty(), source.ranks);
  if (source.endpoint.empty()) return;
  for (int32_t rank = 0; rank < source.ranks; ++rank) {
    const events::FeedId feed = subscriber_.add(
        {of_rank(source.endpoint, rank), of_rank(source.replay_endpoint, rank), ""});
    listened.feeds.push_back(feed);
    source_of_feed_[feed] = {worker, rank};
  }
}

void KvFeeds::close(Listened& listened) {
  for (const events::FeedId feed : std::exchange(listened.feeds, {})) {
    subscriber_.remove(feed);
    (void)subscriber_.post([this, feed] {
      const std::lock_guard lock(mutex_);
      source_of_feed_.erase(feed);
    });
  }
}

void KvFeeds::restarted(uint32_t worker) {
  holders_.forget(worker);
  const std::lock_guard lock(mutex_);
  const auto found = listened_.find(worker);
  if (found == listened_.end()) return;
  for (const events::FeedId feed : found->second.feeds) subscriber_.restart(feed);
}

void KvFeeds::forget(uint32_t worker) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = listened_.find(worker);
    if (found != listened_.end()) {
      close(found->second);
      listened_.erase(found);
    }
  }
  holders_.forget(worker);
}

// Its events are of blocks of another size: they would confirm nothing.
bool KvFeeds::other_kind(uint32_t worker, const PromptKeys& prompt) const {
  const int32_t block = holders_.block_tokens(worker);
  return !prompt.of_bytes && block != 0 && block != prompt.block_tokens;
}

void KvFeeds::sent(uint32_t worker, int32_t rank, const PromptKeys& prompt, size_t held,
                   Expected& expected) {
  const auto& chain = prompt.keys;
  if (chain.empty() || other_kind(worker, prompt)) return;
  if (expected.id == 0) expected.id = holders_.new_expectation();
  const TimePoint now = clock_now();
  if (chain.size() - std::min(held, chain.size()) <= kShortChain) {
    holders_.expect(expected.id, worker, rank, chain, held, now);
  } else {
    expected.posted |= subscriber_.post([this, id = expected.id, worker, rank, chain, held, now] {
      holders_.expect(id, worker, rank, chain, held, now);
    });
  }
}

// After what was posted for it, in the same order.
void KvFeeds::settle(Expected& expected, Duration time) {
  const auto [id, posted] = std::exchange(expected, {});
  if (id == 0) return;
  const TimePoint now = clock_now();
  if (posted && subscriber_.post([this, id, time, now] { holders_.settle(id, time, now); })) return;
  holders_.settle(id, time, now);
}

bool KvFeeds::told_of(uint32_t worker, const PromptKeys& prompt) const {
  return !prompt.of_bytes && holders_.tells(worker);
}

void KvFeeds::holds(uint32_t worker, int32_t rank, const PromptKeys& prompt, size_t held) {
  if (told_of(worker, prompt)) {
    Expected expected;
    sent(worker, rank, prompt, held, expected);
    return settle(expected, kEventTime);
  }
  const auto& chain = prompt.keys;
  const TimePoint now = clock_now();
  if (chain.size() <= kShortChain) {
    holders_.believe(worker, rank, chain, now);
  } else {
    (void)subscriber_.post(
        [this, worker, rank, chain, now] { holders_.believe(worker, rank, chain, now); });
  }
}

void KvFeeds::tend() {
  const TimePoint now = clock_now();
  if (now - tended_ < kTendEvery) return;
  tended_ = now;
  holders_.tend(now);
}

KvFeeds::Counts KvFeeds::counts() const {
  const std::lock_guard lock(mutex_);
  return {subscriber_.counts(), bad_batches_};
}

void KvFeeds::deliver(events::FeedId feed, uint32_t stream, std::string_view payload) {
  auto batch = protocol::decode_kv_events(payload);
  Source source;
  {
    const std::lock_guard lock(mutex_);
    if (!batch) {
      ++bad_batches_;
      return;
    }
    source = source_of_feed_.at(feed);
  }
  if (!batch->rank) batch->rank = source.rank;
  holders_.apply(source.worker, feed * kStreams + stream, *batch);
}

void KvFeeds::reset(events::FeedId feed, uint32_t stream) {
  uint32_t worker = 0;
  {
    const std::lock_guard lock(mutex_);
    worker = source_of_feed_.at(feed).worker;
  }
  holders_.reset(worker, feed * kStreams + stream);
}

}  // namespace tandem::router
