// load --port PORT --clients N --seconds S [...]: a closed loop of streaming chat requests over N
// kept connections of one thread, and what they saw, as one JSON object.
//
// Time to first byte: from the first byte of a request being written to the first byte of the
// answer's body. Chunk latency: the static mocks write the moment of sending into each chunk ("tick
// " and 19 digits), so it is the time that the chunk was under way.
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <sys/uio.h>

#include "http_wire.h"
#include "sockets.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  uint16_t port = 0;
  int clients = 1;
  double seconds = 3;
  double warmup = 0.5;
  size_t body = 200;
  std::string path = "/v1/chat/completions";
  std::string model = "mock-model";
  bool whole = false;      // no streams
  bool quick_ack = false;  // what came is acknowledged at once (TCP_QUICKACK), not 40 ms later
  bool hold = false;       // one request each, told when all have begun; ends after `seconds`
};

int64_t nanoseconds(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

struct Connection {
  int fd = -1;
  std::string begin;  // the head and the body's first bytes, which differ from request to request
  size_t sent = 0;
  bool wants_out = false;
  bool first = true;  // no byte of the answer's body yet
  Clock::time_point began;
  MessageScanner scanner;
  std::string tail;  // the end of what came, where a moment may have been cut
};

class Load {
 public:
  explicit Load(Options options) : options_(std::move(options)) { make_body(); }

  int run() {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    connections_.resize(static_cast<size_t>(options_.clients));
    for (auto& connection : connections_) {
      connection = std::make_unique<Connection>();
      connection->fd = connect_to(options_.port);
      if (connection->fd < 0) fail("connect");
      watch(epoll_, connection->fd, EPOLLIN, connection.get(), true);
    }
    const auto begin = Clock::now();
    measured_from_ = begin + seconds(options_.warmup);
    const auto end = measured_from_ + seconds(options_.seconds);
    for (auto& connection : connections_) {
      start(*connection);
      // A thousand large requests are not written before the first answer is looked at.
      poll(0);
    }
    while (Clock::now() < end) poll(50);
    over_ = true;
    if (!options_.hold) {
      const auto limit = Clock::now() + std::chrono::seconds(20);
      while (running_ > 0 && Clock::now() < limit) poll(50);
    }
    report();
    return failed_ > 0 || (!options_.hold && running_ > 0) ? 1 : 0;
  }

 private:
  static Clock::duration seconds(double count) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
  }

  // Text with line breaks and some bytes beyond ASCII, as prompts are.
  void make_body() {
    before_ =
        R"({"model":")" + options_.model +
        (options_.whole
             ? R"(","max_tokens":64,)"
             : R"(","stream":true,"stream_options":{"include_usage":true},"max_tokens":64,)") +
        R"("messages":[{"role":"user","content":")";
    const std::string end = R"("}]})";
    constexpr std::string_view kText =
        R"(the quick brown fox jumps over the lazy dog; caf\u00e9, na\u00efve, )"
        "\xE6\xB0\xB4"
        R"(\n)";
    const size_t fixed = before_.size() + 20 + end.size();
    while (fixed + rest_.size() + kText.size() <= options_.body) rest_ += kText;
    while (fixed + rest_.size() < options_.body) rest_ += 'x';
    rest_ += end;
  }

  void start(Connection& connection) {
    char number[32];
    std::snprintf(number, sizeof number, "request %011llu ",
                  static_cast<unsigned long long>(started_++));
    connection.begin = "POST " + options_.path +
                       " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                       "Content-Length: " +
                       std::to_string(before_.size() + 20 + rest_.size()) + "\r\n\r\n" + before_ +
                       number;
    connection.sent = 0;
    connection.first = true;
    connection.scanner.reset();
    connection.tail.clear();
    connection.began = Clock::now();
    ++running_;
    write(connection);
  }

  void write(Connection& connection) {
    const size_t whole = connection.begin.size() + rest_.size();
    while (connection.sent < whole) {
      std::array<iovec, 2> pieces;
      int count = 0;
      if (connection.sent < connection.begin.size())
        pieces[static_cast<size_t>(count++)] = {connection.begin.data() + connection.sent,
                                                connection.begin.size() - connection.sent};
      const size_t skipped =
          connection.sent > connection.begin.size() ? connection.sent - connection.begin.size() : 0;
      pieces[static_cast<size_t>(count++)] = {rest_.data() + skipped, rest_.size() - skipped};
      const ssize_t sent = ::writev(connection.fd, pieces.data(), count);
      if (sent < 0) break;
      connection.sent += static_cast<size_t>(sent);
    }
    const bool wants_out = connection.sent < whole;
    if (wants_out != connection.wants_out) {
      connection.wants_out = wants_out;
      watch(epoll_, connection.fd, wants_out ? EPOLLIN | EPOLLOUT : EPOLLIN, &connection, false);
    }
  }

  void poll(int milliseconds) {
    std::array<epoll_event, 256> events;
    const int count =
        ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), milliseconds);
    for (int i = 0; i < count; ++i) {
      auto& connection = *static_cast<Connection*>(events[static_cast<size_t>(i)].data.ptr);
      if (connection.fd < 0) continue;
      if ((events[static_cast<size_t>(i)].events & EPOLLOUT) != 0) write(connection);
      if ((events[static_cast<size_t>(i)].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
        read(connection);
    }
  }

  void read(Connection& connection) {
    const ssize_t got = ::read(connection.fd, buffer_.data(), buffer_.size());
    if (got < 0 && errno == EAGAIN) return;
    const auto at = Clock::now();
    if (options_.quick_ack) {
      const int on = 1;
      (void)::setsockopt(connection.fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
    }
    const bool measured = connection.began >= measured_from_;
    if (got <= 0) return lost(connection);
    connection.scanner.feed(std::string_view(buffer_.data(), static_cast<size_t>(got)),
                            [&](std::string_view body) {
                              if (connection.first) {
                                connection.first = false;
                                ++begun_;
                                if (measured) first_.push_back(microseconds(at - connection.began));
                                if (options_.hold && begun_ == connections_.size()) {
                                  std::printf("holding\n");
                                  std::fflush(stdout);
                                }
                              }
                              look_for_moments(connection, body, at);
                            });
    if (!connection.scanner.done()) return;
    --running_;
    const bool good = connection.scanner.status() == 200;
    failed_ += good ? 0 : 1;
    completed_ += 1;
    if (measured && good) {
      ++measured_;
      whole_.push_back(microseconds(at - connection.began));
    }
    if (!over_ && !options_.hold) start(connection);
  }

  // Moments of chunks that were read at once share the moment of reading.
  void look_for_moments(Connection& connection, std::string_view body, Clock::time_point at) {
    constexpr std::string_view kMark = "\"tick ";
    constexpr size_t kLength = kMark.size() + 19;
    std::string joined;
    if (!connection.tail.empty()) {
      joined = connection.tail;
      joined += body;
      body = joined;
    }
    size_t from = 0;
    for (size_t found; (found = body.find(kMark, from)) != std::string_view::npos;) {
      if (found + kLength > body.size()) break;
      int64_t moment = 0;
      std::from_chars(body.data() + found + kMark.size(), body.data() + found + kLength, moment);
      // Of held streams only once all have begun: the burst of beginnings is no measure of a chunk.
      if (options_.hold ? begun_ == connections_.size() : connection.began >= measured_from_)
        chunks_.push_back(static_cast<float>(nanoseconds(at) - moment) / 1000.0F);
      from = found + kLength;
    }
    body.remove_prefix(from);
    const size_t keep = std::min(body.size(), kLength - 1);
    connection.tail.assign(body.substr(body.size() - keep));
  }

  void lost(Connection& connection) {
    ++failed_;
    --running_;
    ::close(connection.fd);
    connection.fd = -1;
    if (over_) return;
    connection.fd = connect_to(options_.port);
    if (connection.fd < 0) return;
    connection.wants_out = false;
    watch(epoll_, connection.fd, EPOLLIN, &connection, true);
    start(connection);
  }

  static float microseconds(Clock::duration duration) {
    return std::chrono::duration<float, std::micro>(duration).count();
  }

  static void print_quantiles(const char* name, std::vector<float>& samples) {
    std::sort(samples.begin(), samples.end());
    const auto at = [&](double share) {
      return samples.empty()
                 ? 0.0F
                 : samples[static_cast<size_t>(share * static_cast<double>(samples.size() - 1))];
    };
    std::printf(", \"%s\": {\"count\": %zu, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f}", name,
                samples.size(), static_cast<double>(at(0.5)), static_cast<double>(at(0.9)),
                static_cast<double>(at(0.99)));
  }

  void report() {
    const double took = std::chrono::duration<double>(Clock::now() - measured_from_).count();
    std::printf(
        "{\"clients\": %d, \"body\": %zu, \"completed\": %llu, \"failed\": %llu, "
        "\"per_second\": %.1f",
        options_.clients, before_.size() + 20 + rest_.size(),
        static_cast<unsigned long long>(completed_), static_cast<unsigned long long>(failed_),
        static_cast<double>(measured_) / took);
    print_quantiles("first_us", first_);
    print_quantiles("whole_us", whole_);
    print_quantiles("chunk_us", chunks_);
    std::printf("}\n");
  }

  Options options_;
  std::string before_;
  std::string rest_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::array<char, 64 << 10> buffer_;
  int epoll_ = -1;
  Clock::time_point measured_from_;
  bool over_ = false;
  int64_t running_ = 0;
  size_t begun_ = 0;
  uint64_t started_ = 0;
  uint64_t completed_ = 0;
  uint64_t measured_ = 0;
  uint64_t failed_ = 0;
  std::vector<float> first_, whole_, chunks_;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--hold" || name == "--whole" || name == "--quick-ack") {
      (name == "--hold"    ? options.hold
       : name == "--whole" ? options.whole
                           : options.quick_ack) = true;
      continue;
    }
    if (i + 1 >= argc) return false;
    const char* const value = argv[++i];
    if (name == "--port") {
      options.port = static_cast<uint16_t>(std::atoi(value));
    } else if (name == "--clients") {
      options.clients = std::atoi(value);
    } else if (name == "--seconds") {
      options.seconds = std::atof(value);
    } else if (name == "--warmup") {
      options.warmup = std::atof(value);
    } else if (name == "--body") {
      options.body = std::strtoull(value, nullptr, 10);
    } else if (name == "--path") {
      options.path = value;
    } else if (name == "--model") {
      options.model = value;
    } else {
      return false;
    }
  }
  return options.port != 0 && options.clients > 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::bench::Options options;
  if (!tandem::bench::parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "load --port PORT [--clients N] [--seconds S] [--warmup S] [--body BYTES] "
                 "[--path PATH] [--model NAME] [--whole] [--quick-ack] [--hold]\n");
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  tandem::bench::raise_descriptor_limit();
  static tandem::bench::Load load(std::move(options));
  return load.run();
}
