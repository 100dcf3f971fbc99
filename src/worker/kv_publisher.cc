#include "worker/kv_publisher.h"

#include <charconv>
#include <chrono>
#include <unordered_set>
#include <utility>

namespace tandem::worker {

namespace {

using protocol::BlockRemoved;
using protocol::BlockStored;
using protocol::KvEvent;

constexpr size_t kChangesPerMessage = 256;
constexpr size_t kBlocksPerEvent = 256;

std::string_view bytes_of(const protocol::ContentId& id) {
  return {reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()};
}

// "tcp://host:5557" -> "tcp://host:5558"; a port that the system picks stays one.
Result<std::string> next_port(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  unsigned port = 0;
  const char* const end = endpoint.data() + endpoint.size();
  if (!endpoint.starts_with("tcp://") || colon < 6 ||
      std::from_chars(endpoint.data() + colon + 1, end, port).ptr != end || port > 65534)
    return make_error(400, "bad_endpoint",
                      "'" + endpoint +
                          "' is not like tcp://HOST:PORT: name the endpoint for past "
                          "events too (--kv-events-replay)");
  return endpoint.substr(0, colon + 1) + std::to_string(port == 0 ? 0 : port + 1);
}

}  // namespace

size_t KvPublisher::Change::bytes() const {
  return sizeof(Change) + (block ? block->tokens.size() * sizeof(int32_t) + block->adapter.size() +
                                       block->salt.size()
                                 : 0);
}

KvPublisher::KvPublisher(KvPublisherOptions options, observe::Metrics& metrics)
    : options_(std::move(options)),
      topic_("kv@" + options_.endpoint.substr(options_.endpoint.find("//") + 2) + "@" +
             options_.model),
      plain_root_(protocol::root_content_id(options_.lineage, options_.block_tokens, "")),
      stored_(metrics.counter("tandem_kv_events_stored_blocks",
                              "Blocks that KV events told as stored.")),
      removed_(metrics.counter("tandem_kv_events_removed_blocks",
                               "Blocks that KV events told as removed.")),
      lost_(metrics.counter("tandem_kv_events_overflows",
                            "Times that the queue of KV events was full and all was cleared.")),
      queued_(metrics.gauge("tandem_kv_events_queue_bytes", "KV events that wait to be told.")) {}

Result<std::unique_ptr<KvPublisher>> KvPublisher::create(KvPublisherOptions options,
                                                         observe::Metrics& metrics) {
  if (options.replay_endpoint.empty()) {
    TANDEM_TRY(replay, next_port(options.endpoint));
    options.replay_endpoint = replay;
  }
  std::unique_ptr<KvPublisher> made(new KvPublisher(std::move(options), metrics));
  events::PublisherOptions publish;
  publish.endpoint = made->options_.endpoint;
  publish.replay_endpoint = made->options_.replay_endpoint;
  publish.topic = made->topic_;
  publish.ring_bytes = made->options_.ring_bytes;
  TANDEM_TRY(publisher,
             events::Publisher::create(std::move(publish),
                                       {.next = [it = made.get()] { return it->next(); },
                                        .snapshot = [it = made.get()] { return it->snapshot(); }}));
  made->publisher_ = std::move(publisher);
  made->publisher_->wake();
  return made;
}

void KvPublisher::stored(const Stored& block) {
  Block made;
  if (block.parent != nullptr) made.parent = *block.parent;
  made.tokens.assign(block.tokens.begin(), block.tokens.end());
  made.adapter = block.adapter;
  if (block.parent == nullptr && block.root != plain_root_) made.salt = block.root.hex();
  push({block.id, std::move(made)});
}

void KvPublisher::removed(const Id& id) { push({id, std::nullopt}); }

void KvPublisher::push(Change change) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (queue_bytes_ + change.bytes() > options_.queue_bytes) {
      queue_.clear();
      queue_bytes_ = 0;
      cleared_ = true;
      lost_.add();
    }
    wake = queue_.empty();
    queue_bytes_ += change.bytes();
    queue_.push_back(std::move(change));
  }
  if (wake) publisher_->wake();
}

std::string KvPublisher::encode(std::vector<KvEvent> events) const {
  protocol::KvEventBatch batch;
  batch.timestamp =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  batch.events = std::move(events);
  return protocol::encode_kv_events(batch, {});
}

void KvPublisher::append(const Id& id, const Block& block, std::vector<KvEvent>& events) const {
  auto* last = events.empty() ? nullptr : std::get_if<BlockStored>(&events.back());
  const bool follows = last != nullptr && block.parent && last->lora_name == block.adapter &&
                       last->hashes.size() < kBlocksPerEvent &&
                       last->hashes.back().bytes == bytes_of(*block.parent);
  if (!follows) {
    BlockStored event;
    if (block.parent) event.parent = protocol::EventHash{.bytes = bytes_of(*block.parent)};
    event.block_tokens = options_.block_tokens;
    event.lora_name = block.adapter;
    if (!block.salt.empty()) event.extras.push_back(protocol::extra_of_salt(block.salt));
    events.emplace_back(std::move(event));
    last = &std::get<BlockStored>(events.back());
  } else if (!last->extras.empty()) {
    last->extras.emplace_back();
  }
  last->hashes.push_back({.bytes = bytes_of(id)});
  last->tokens.insert(last->tokens.end(), block.tokens.begin(), block.tokens.end());
}

void KvPublisher::tell(const std::vector<Change>& changes, std::vector<KvEvent>& events) {
  for (const Change& change : changes) {
    if (change.block) {
      // After an overflow parents may be unknown to everybody.
      if (change.block->parent && !mirror_.contains(*change.block->parent)) continue;
      if (!mirror_.emplace(change.id, *change.block).second) continue;
      append(change.id, *change.block, events);
      stored_.add();
    } else if (mirror_.erase(change.id) > 0) {
      if (events.empty() || !std::holds_alternative<BlockRemoved>(events.back()))
        events.emplace_back(BlockRemoved{});
      std::get<BlockRemoved>(events.back()).hashes.push_back({.bytes = bytes_of(change.id)});
      removed_.add();
    }
  }
}

std::string KvPublisher::next() {
  while (true) {
    std::vector<Change> changes;
    bool cleared = false;
    {
      const std::lock_guard lock(mutex_);
      cleared = std::exchange(cleared_, false);
      while (!queue_.empty() && changes.size() < kChangesPerMessage) {
        queue_bytes_ -= queue_.front().bytes();
        changes.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
      queued_.set(static_cast<double>(queue_bytes_));
    }
    if (!cleared && changes.empty()) return "";
    std::vector<KvEvent> events;
    if (cleared) {
      mirror_.clear();
      events.emplace_back(protocol::AllBlocksCleared{});
    }
    tell(changes, events);
    if (!events.empty()) return encode(std::move(events));
  }
}

// Everything that was told and not taken back, parents before their children.
std::string KvPublisher::snapshot() const {
  std::vector<KvEvent> events;
  events.emplace_back(protocol::AllBlocksCleared{});
  std::unordered_set<Id, protocol::ContentIdHash> done;
  std::vector<const std::pair<const Id, Block>*> path;
  for (const auto& entry : mirror_) {
    path.clear();
    for (const auto* at = &entry; at != nullptr && !done.contains(at->first);) {
      path.push_back(at);
      if (!at->second.parent) break;
      const auto above = mirror_.find(*at->second.parent);
      at = above == mirror_.end() ? nullptr : &*above;
    }
    for (size_t i = path.size(); i-- > 0;) {
      append(path[i]->first, path[i]->second, events);
      done.insert(path[i]->first);
    }
  }
  return encode(std::move(events));
}

}  // namespace tandem::worker
