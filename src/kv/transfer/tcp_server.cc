#include "kv/transfer/tcp_server.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "numerics/hmac.h"
#include "observe/log.h"

namespace tandem::kv::tcp {
namespace {

constexpr Duration kHandshake = std::chrono::seconds(5);
constexpr Duration kRequest = std::chrono::seconds(10);  // from a request's first byte to its last
constexpr Duration kSend = std::chrono::seconds(30);     // a peer that does not read is dropped
constexpr uint64_t kFileBytes = 16 << 10;                // below, gathering is cheaper
constexpr size_t kGathered = 256 << 10;

TimePoint in(Duration limit) { return std::chrono::steady_clock::now() + limit; }

// sendfile and OpenSSL write without MSG_NOSIGNAL.
void block_sigpipe() {
  sigset_t pipes;
  sigemptyset(&pipes);
  sigaddset(&pipes, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipes, nullptr);
}

uint64_t random_epoch() {
  const std::string bytes = numerics::random_bytes(sizeof(uint64_t));
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

int open_listening(const std::string& host, uint16_t port, uint16_t& bound, std::string& why) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    why = gai_strerror(error);
    return -1;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  const int file = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  if (file >= 0) setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (file < 0 || bind(file, found->ai_addr, found->ai_addrlen) != 0 || listen(file, 128) != 0 ||
      getsockname(file, reinterpret_cast<sockaddr*>(&name), &size) != 0) {
    why = std::strerror(errno);
    if (file >= 0) close(file);
    return -1;
  }
  bound = ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(name).sin_port);
  return file;
}

}  // namespace

Server::Server(const ServerOptions& options, std::span<const std::byte> memory, int file)
    : options_(options), memory_(memory), file_(file), epoch_(random_epoch()) {}

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options,
                                              std::span<const std::byte> memory, int file) {
  std::unique_ptr<Server> server(new Server(options, memory, file));
  std::string why;
  server->listening_ = open_listening(options.host, options.port, server->port_, why);
  if (server->listening_ < 0) {
    return make_error(500, "listen_failed",
                      "The address for KV data streams, " + options.host + ":" +
                          std::to_string(options.port) + ", cannot be opened: " + why + ".");
  }
  server->acceptor_ = std::thread([raw = server.get()] { raw->accept_loop(); });
  return server;
}

Server::~Server() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
    for (const auto& stream : streams_) stream->socket.shut_down();
  }
  if (listening_ >= 0) shutdown(listening_, SHUT_RDWR);
  if (acceptor_.joinable()) acceptor_.join();
  for (const auto& stream : streams_) stream->thread.join();
  if (listening_ >= 0) close(listening_);
}

void Server::admit(const PeerKey& key) {
  const std::lock_guard guard(lock_);
  keys_[key.id] = key.key;
}

void Server::expel(const std::string& id) {
  std::unique_lock guard(lock_);
  keys_.erase(id);
  for (const auto& stream : streams_) {
    if (stream->peer == id) stream->socket.shut_down();
  }
  ended_.wait(guard, [&] {
    return std::ranges::none_of(
        streams_, [&](const auto& stream) { return stream->peer == id && !stream->ended; });
  });
}

void Server::accept_loop() {
  while (true) {
    const int file = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
    {
      const std::lock_guard guard(lock_);
      if (stopping_) {
        if (file >= 0) close(file);
        return;
      }
    }
    if (file < 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    reap();
    add_stream(file);
  }
}

void Server::add_stream(int file) {
  auto stream = std::make_unique<Stream>(file);
  const std::lock_guard guard(lock_);
  if (stopping_ || streams_.size() >= options_.max_streams) return;  // closes it
  Stream* raw = stream.get();
  streams_.push_back(std::move(stream));
  raw->thread = std::thread([this, raw] { serve(*raw); });
}

void Server::reap() {
  std::list<std::unique_ptr<Stream>> ended;
  {
    const std::lock_guard guard(lock_);
    for (auto at = streams_.begin(); at != streams_.end();) {
      const auto next = std::next(at);
      if ((*at)->ended) ended.splice(ended.end(), streams_, at);
      at = next;
    }
  }
  for (const auto& stream : ended) stream->thread.join();
}

void Server::serve(Stream& stream) {
  block_sigpipe();
  const bool secure =
      options_.tls == nullptr || stream.socket.start_tls(*options_.tls, "", in(kHandshake));
  if (secure && attach(stream)) {
    while (answer_request(stream)) {
    }
  }
  stream.socket.shut_down();
  const std::lock_guard guard(lock_);
  stream.ended = true;
  ended_.notify_all();
}

bool Server::attach(Stream& stream) {
  const std::string nonce = numerics::random_bytes(kNonceBytes);
  const std::string challenge = encode_challenge(nonce);
  std::string bytes(kAttachBytes, '\0');
  if (!stream.socket.write_all(challenge.data(), challenge.size(), in(kHandshake)) ||
      !stream.socket.read_all(bytes.data(), bytes.size(), in(kHandshake))) {
    return false;
  }
  const auto asked = decode_attach(bytes);
  if (!asked) return false;
  Welcome welcome;
  std::string key;
  {
    const std::lock_guard guard(lock_);
    const auto at = keys_.find(asked->id);
    if (at != keys_.end()) key = at->second;
    if (at == keys_.end() ||
        !numerics::equal_constant_time(asked->proof, attach_proof(key, nonce, *asked))) {
      welcome.refusal = Refusal::kUnknownPeer;
    } else if (asked->epoch != epoch_) {
      welcome.refusal = Refusal::kEpoch;
    } else {
      stream.peer = asked->id;  // from here on expel() finds it
      welcome.proof = welcome_proof(key, nonce, asked->nonce);
    }
  }
  if (welcome.refusal != Refusal::kNone)
    observe::log_warning("a KV data stream was refused: it belongs to no connected peer");
  const std::string answer = encode_welcome(welcome);
  return stream.socket.write_all(answer.data(), answer.size(), in(kHandshake)) &&
         welcome.refusal == Refusal::kNone;
}

bool Server::answer_request(Stream& stream) {
  DataSocket& socket = stream.socket;
  std::string head(kHeaderBytes, '\0');
  // Idle as long as the control connection lives, whose end expels the peer.
  if (!socket.read_all(head.data(), 1, TimePoint::max()) ||
      !socket.read_all(head.data() + 1, head.size() - 1, in(kRequest))) {
    return false;
  }
  const auto header = decode_request_header(head);
  if (!header) return false;
  std::string body(header->count * kRangeBytes, '\0');
  if (!socket.read_all(body.data(), body.size(), in(kRequest))) return false;
  const auto ranges = decode_ranges(*header, body);
  if (!ranges) return false;
  const Refusal refused = refusal(*header, *ranges);
  std::string first =
      encode_response_header({refused, header->id, refused == Refusal::kNone ? header->bytes : 0});
  if (refused != Refusal::kNone) return send_ranges(socket, std::move(first), {});
  if (header->view != 0) return send_view(stream, first, *ranges, header->view);
  return send_ranges(socket, std::move(first), *ranges);
}

Refusal Server::refusal(const RequestHeader& header, const std::vector<Range>& ranges) const {
  if (header.view == 0) return inside(ranges, memory_.size()) ? Refusal::kNone : Refusal::kOutside;
  SourceViews::Shape shape;
  if (options_.views) shape = options_.views->shape(header.view);
  if (shape.bytes == 0) return Refusal::kView;
  return inside(ranges, memory_.size(), shape) ? Refusal::kNone : Refusal::kOutside;
}

// Some pieces at a time: the peer reads those that have left while the next ones are turned.
bool Server::send_view(Stream& stream, const std::string& head, const std::vector<Range>& ranges,
                       uint16_t view) {
  if (!stream.socket.write_all(head.data(), head.size(), in(kSend), true)) return false;
  const uint64_t bytes = options_.views->shape(view).bytes;
  const size_t most = std::clamp<size_t>(kGathered / bytes, 1, ranges.size());
  stream.turned.resize(std::max(stream.turned.size(), most * bytes));
  for (size_t first = 0; first < ranges.size(); first += most) {
    const size_t count = std::min(most, ranges.size() - first);
    for (size_t i = 0; i < count; ++i)
      options_.views->write(view, memory_.data() + ranges[first + i].offset,
                            stream.turned.data() + i * bytes);
    if (!stream.socket.write_all(stream.turned.data(), count * bytes, in(kSend),
                                 first + count < ranges.size())) {
      return false;
    }
  }
  return true;
}

// Small pieces are gathered behind `held`; large ones go straight from the memory or its file.
bool Server::send_ranges(DataSocket& socket, std::string held, const std::vector<Range>& ranges) {
  const auto flush = [&](bool more) {
    const bool sent = held.empty() || socket.write_all(held.data(), held.size(), in(kSend), more);
    held.clear();
    return sent;
  };
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    const bool last = i + 1 == ranges.size();
    if (range.bytes < kFileBytes) {
      append(held, range);
      if (held.size() >= kGathered && !flush(!last)) return false;
    } else if (!flush(true) || !send_range(socket, range, last)) {
      return false;
    }
  }
  return flush(false);
}

void Server::append(std::string& held, const Range& range) const {
  const std::byte* from = memory_.data() + range.offset;
  if (range.bytes != sizeof(uint64_t) || range.offset % sizeof(uint64_t) != 0) {
    held.append(reinterpret_cast<const char*>(from), range.bytes);
    return;
  }
  // A generation: one load, see SharedArena.
  std::atomic_thread_fence(std::memory_order_acquire);
  auto& word = *const_cast<uint64_t*>(reinterpret_cast<const uint64_t*>(from));
  const uint64_t value = std::atomic_ref<uint64_t>(word).load(std::memory_order_relaxed);
  held.append(reinterpret_cast<const char*>(&value), sizeof value);
}

bool Server::send_range(DataSocket& socket, const Range& range, bool last) {
  if (options_.use_file && file_ >= 0 && !socket.is_tls())
    return socket.send_file_all(file_, range.offset, range.bytes, in(kSend));
  return socket.write_all(memory_.data() + range.offset, range.bytes, in(kSend), !last);
}

}  // namespace tandem::kv::tcp
