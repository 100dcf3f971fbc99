#include "events/subscriber.h"

#include <array>
#include <utility>

namespace tandem::events {

namespace {

constexpr size_t kMostTasks = 4096;
constexpr size_t kMostAtOnce = 512;  // messages of one feed before the next feed's turn
constexpr int kTickMilliseconds = 250;

TimePoint clock_now() { return std::chrono::steady_clock::now(); }

}  // namespace

Subscriber::Subscriber(Handlers handlers, SubscriberOptions options)
    : handlers_(std::move(handlers)), options_(options), thread_([this] { run(); }) {}

Subscriber::~Subscriber() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.signal();
  thread_.join();
}

void Subscriber::command(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(task));
  }
  wake_.signal();
}

FeedId Subscriber::add(Feed feed) {
  FeedId id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
  }
  command([this, id, feed = std::move(feed)]() mutable { open(id, std::move(feed)); });
  return id;
}

void Subscriber::remove(FeedId feed) {
  command([this, feed] { close(feed); });
}

void Subscriber::restart(FeedId feed) {
  command([this, feed] {
    const auto found = sources_.find(feed);
    if (found == sources_.end()) return;
    Source& source = *found->second;
    for (uint32_t i = 0; i < source.streams.size(); ++i)
      act(source, i, source.streams[i]->tracker.on_restart(clock_now()));
  });
}

bool Subscriber::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (commands_.size() >= kMostTasks) return false;
    commands_.push_back(std::move(task));
  }
  wake_.signal();
  return true;
}

Subscriber::Counts Subscriber::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

Status Subscriber::connect(Source& source) {
  TANDEM_TRY(socket, ZmqSocket::open(context_, SocketKind::kSub));
  TANDEM_CHECK(socket->bound(options_.high_water, options_.message_bytes));
  TANDEM_CHECK(socket->watch());
  TANDEM_CHECK(socket->subscribe(source.feed.topic));
  TANDEM_CHECK(socket->connect(source.feed.endpoint));
  if (!source.feed.replay_endpoint.empty()) {
    TANDEM_TRY(replay, ZmqSocket::open(context_, SocketKind::kDealer));
    TANDEM_CHECK(replay->bound(options_.high_water, options_.message_bytes));
    TANDEM_CHECK(replay->connect(source.feed.replay_endpoint));
    source.replay = std::move(replay);
  }
  source.socket = std::move(socket);
  return {};
}

void Subscriber::open(FeedId id, Feed feed) {
  auto source = std::make_unique<Source>();
  source->id = id;
  source->feed = std::move(feed);
  TrackerOptions tracker = options_.tracker;
  tracker.can_replay = !source->feed.replay_endpoint.empty();
  source->streams.push_back(std::make_unique<Stream>(tracker));
  const Status connected = connect(*source);
  const std::lock_guard lock(mutex_);
  if (!connected) {
    ++counts_.errors;
    return;
  }
  sources_[id] = std::move(source);
  counts_.feeds = sources_.size();
}

void Subscriber::close(FeedId id) {
  const auto found = sources_.find(id);
  if (found == sources_.end()) return;
  for (uint32_t i = 0; i < found->second->streams.size(); ++i) handlers_.reset(id, i);
  sources_.erase(found);
  const std::lock_guard lock(mutex_);
  counts_.feeds = sources_.size();
}

Subscriber::Stream* Subscriber::stream_of(Source& source, const std::string& topic) {
  for (const auto& stream : source.streams) {
    if (stream->named && stream->topic == topic) return stream.get();
  }
  if (Stream& first = *source.streams[0]; !first.named) {
    first.named = true;
    first.topic = topic;
    return &first;
  }
  if (source.streams.size() >= options_.streams_per_feed) return nullptr;
  // Requests for repetition do not name a topic, so only a lone stream can be repeated.
  TrackerOptions tracker = options_.tracker;
  tracker.can_replay = false;
  source.streams.push_back(std::make_unique<Stream>(tracker));
  source.streams.back()->named = true;
  source.streams.back()->topic = topic;
  return source.streams.back().get();
}

void Subscriber::act(Source& source, uint32_t stream, const StreamTracker::Actions& actions) {
  using Kind = StreamTracker::Action::Kind;
  for (const StreamTracker::Action& action : actions) {
    if (action.kind == Kind::kDeliver) {
      handlers_.deliver(source.id, stream, action.payload);
    } else if (action.kind == Kind::kReset) {
      handlers_.reset(source.id, stream);
    } else if (source.replay != nullptr) {
      const std::string number = sequence_bytes(action.sequence);
      const std::array<std::string_view, 2> frames{std::string_view(), number};
      (void)source.replay->send(frames);  // unanswered, it times out
    }
  }
}

void Subscriber::read(Source& source, TimePoint now) {
  if (source.socket->new_connections() > 0)
    act(source, 0, source.streams[0]->tracker.on_connected(now));
  Frames frames;
  for (size_t i = 0; i < kMostAtOnce && source.socket->receive(frames, 8); ++i) {
    uint64_t sequence = 0;
    Stream* const stream = frames.size() == 3 ? stream_of(source, frames[0]) : nullptr;
    const bool good = stream != nullptr && read_sequence(frames[1], sequence);
    {
      const std::lock_guard lock(mutex_);
      counts_.errors += good ? 0 : 1;
      counts_.messages += good ? 1 : 0;
      counts_.bytes += good ? frames[2].size() : 0;
    }
    if (!good) continue;
    uint32_t index = 0;
    while (source.streams[index].get() != stream) ++index;
    act(source, index, stream->tracker.on_live(sequence, std::move(frames[2]), now));
  }
}

void Subscriber::read_replay(Source& source, TimePoint now) {
  Frames frames;
  StreamTracker& tracker = source.streams[0]->tracker;
  for (size_t i = 0; i < kMostAtOnce && source.replay->receive(frames, 8); ++i) {
    // [nothing, number, payload]; some builds put more before the number.
    uint64_t sequence = 0;
    if (frames.size() < 2 || !read_sequence(frames[frames.size() - 2], sequence)) continue;
    if (sequence == kEndOfReplay) {
      act(source, 0, tracker.on_replay_end(now));
    } else {
      act(source, 0, tracker.on_replay(sequence, std::move(frames.back()), now));
    }
  }
}

void Subscriber::count(Source& source) {
  StreamTracker::Counts sum;
  size_t held = 0;
  for (const auto& stream : source.streams) {
    const StreamTracker::Counts& one = stream->tracker.counts();
    sum.gaps += one.gaps;
    sum.replayed += one.replayed;
    sum.resets += one.resets;
    held += stream->tracker.held_bytes();
  }
  const StreamTracker::Counts before = std::exchange(source.counted, sum);
  const std::lock_guard lock(mutex_);
  counts_.gaps += sum.gaps - before.gaps;
  counts_.replayed += sum.replayed - before.replayed;
  counts_.resets += sum.resets - before.resets;
  counts_.held_bytes += held;
}

void Subscriber::run() {
  std::vector<void*> sockets;
  while (true) {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
      tasks.swap(commands_);
    }
    for (const auto& task : tasks) task();
    sockets.clear();
    for (const auto& [id, source] : sources_) {
      sockets.push_back(source->socket->get());
      sockets.push_back(source->socket->monitor());
      if (source->replay) sockets.push_back(source->replay->get());
    }
    wait_readable(sockets, wake_, kTickMilliseconds);
    wake_.drain();
    const TimePoint now = clock_now();
    {
      const std::lock_guard lock(mutex_);
      counts_.held_bytes = 0;
    }
    for (const auto& [id, source] : sources_) {
      read(*source, now);
      if (source->replay) read_replay(*source, now);
      for (uint32_t i = 0; i < source->streams.size(); ++i)
        act(*source, i, source->streams[i]->tracker.on_tick(now));
      count(*source);
    }
    if (handlers_.tick) handlers_.tick();
  }
  sources_.clear();
}

}  // namespace tandem::events
