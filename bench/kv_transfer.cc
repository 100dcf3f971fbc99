// How fast KV pages move between two processes of this machine, beside memcpy and (in
// kv_transfer.sh) iperf3: reads of one layer of many pages, in batches, as handoffs post them.
//
//   bench_kv_transfer [SLICE_KIB]     default 64: a layer of a page of 16 tokens, 8 heads of 128
//
// Twice: between two small buffers that stay in the caches, as iperf3 does it, and spread over an
// arena, as in life. Rows are measured in rounds that take turns; the median is printed with its
// share of the first row, memcpy of the same slices by one thread.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/shared_arena.h"
#include "kv/transfer/file_passing.h"
#include "kv/transfer/local_transport.h"
#include "kv/transfer/tcp_transport.h"

namespace tandem::kv {
namespace {

constexpr size_t kLayers = 16;  // slices of a page: reads are strided as in life
constexpr size_t kArenaBytes = size_t{512} << 20;
constexpr size_t kBatchBytes = size_t{2} << 20;
constexpr size_t kBatches = 12;  // in flight
constexpr double kSeconds = 0.7;
constexpr int kRounds = 3;

struct Subject {
  std::string name;
  std::function<std::unique_ptr<Transport>()> make;
};

std::vector<Subject> subjects() {
  std::vector<Subject> all{
      {"shm, 1 thread", [] { return make_shared_memory_transport({.threads = 1}); }},
      {"shm, 2 threads", [] { return make_shared_memory_transport({.threads = 2}); }}};
  for (const int streams : {1, 2, 4}) {
    all.push_back({"tcp, " + std::to_string(streams) + " streams",
                   [streams] { return make_tcp_transport({.streams = streams}); }});
  }
  for (const int streams : {1, 4}) {
    all.push_back({"tcp, " + std::to_string(streams) + " copied", [streams] {
                     return make_tcp_transport({.streams = streams, .use_file = false});
                   }});
  }
  return all;
}

PeerKey key() { return {std::string(16, 'i'), std::string(32, 'k')}; }

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "kv_transfer: %s\n", what.c_str());
  std::exit(1);
}

void write_all(int socket, const void* from, size_t bytes) {
  if (write(socket, from, bytes) != static_cast<ssize_t>(bytes)) fail("the other process is gone");
}
void read_all(int socket, void* into, size_t bytes) {
  if (recv(socket, into, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes))
    fail("the other process is gone");
}

// The sender: exposes one arena through every transport and waits for the end.
int serve(int socket, size_t page_bytes) {
  const auto arena = std::move(
      *device::SharedArena::create(page_bytes, static_cast<int32_t>(kArenaBytes / page_bytes)));
  std::memset(arena->pages(), 7, arena->shape().page_count * arena->shape().page_stride);
  std::vector<std::unique_ptr<Transport>> transports;
  const uint64_t first = arena->shape().pages_offset;
  write_all(socket, &first, sizeof first);
  if (!send_file(socket, arena->read_only_descriptor())) return 1;
  for (const Subject& subject : subjects()) {
    transports.push_back(subject.make());
    const auto descriptor =
        transports.back()->expose(arena->segment(), arena->read_only_descriptor());
    if (!descriptor) fail(descriptor.error().message);
    transports.back()->admit(key());
    const uint64_t size = descriptor->bytes.size();
    write_all(socket, &size, sizeof size);
    write_all(socket, descriptor->bytes.data(), size);
  }
  char end = 0;
  (void)!read(socket, &end, 1);
  return 0;
}

struct Walk {  // slice by slice through the arena, layer after layer
  uint64_t first;
  size_t page_bytes, slice, pages;
  size_t at = 0;
  uint64_t next() {
    const size_t page = at % pages;
    const size_t layer = at / pages % kLayers;
    ++at;
    return first + page * page_bytes + layer * slice;
  }
};

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double copy_rate(const std::byte* from, Walk walk, std::vector<std::byte>& into) {
  const auto start = std::chrono::steady_clock::now();
  uint64_t bytes = 0;
  for (size_t place = 0; since(start) < kSeconds;) {
    for (int i = 0; i < 32; ++i) {
      std::memcpy(into.data() + place, from + walk.next(), walk.slice);
      place = (place + walk.slice) % (into.size() / walk.slice * walk.slice);
      bytes += walk.slice;
    }
  }
  return static_cast<double>(bytes) / since(start) / 1e9;
}

double read_rate(Remote& remote, Walk walk, std::vector<std::byte>& into) {
  std::mutex lock;
  std::condition_variable ended;
  size_t in_flight = 0;
  bool good = true;
  uint64_t bytes = 0;
  size_t place = 0;
  std::vector<Read> reads;
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock guard(lock);
  while (since(start) < kSeconds && good) {
    ended.wait(guard, [&] { return in_flight < kBatches; });
    reads.clear();
    for (size_t i = 0; i < kBatchBytes / walk.slice; ++i) {
      reads.push_back({walk.next(), into.data() + place, walk.slice});
      place = (place + walk.slice) % (into.size() / walk.slice * walk.slice);
    }
    ++in_flight;
    guard.unlock();
    const auto posted = remote.post(reads, std::chrono::seconds(10), [&](TransferStatus status) {
      const std::lock_guard inside(lock);
      --in_flight;
      good = good && status == TransferStatus::kOk;
      bytes += kBatchBytes;
      ended.notify_one();
    });
    guard.lock();
    if (posted != TransferStatus::kOk) fail("a batch was refused");
  }
  ended.wait(guard, [&] { return in_flight == 0; });
  if (!good) fail("a batch failed");
  return static_cast<double>(bytes) / since(start) / 1e9;
}

std::shared_ptr<Remote> connect(Transport& transport, Descriptor descriptor) {
  std::promise<Result<std::shared_ptr<Remote>>> promise;
  transport.connect(std::move(descriptor), key(), "127.0.0.1", std::chrono::seconds(3),
                    [&](auto result) { promise.set_value(std::move(result)); });
  auto result = promise.get_future().get();
  if (!result) fail(result.error().message);
  return *result;
}

void table(const Walk& walk, const std::byte* memory,
           const std::vector<std::shared_ptr<Remote>>& remotes,
           const std::vector<std::string>& names, std::vector<std::byte>& into) {
  std::vector<std::vector<double>> rates(names.size());
  for (int round = 0; round < kRounds; ++round) {
    rates[0].push_back(copy_rate(memory, walk, into));
    for (size_t i = 0; i < remotes.size(); ++i)
      rates[i + 1].push_back(read_rate(*remotes[i], walk, into));
  }
  std::printf("%-18s %8s %8s\n", "transport", "GB/s", "memcpy");
  double base = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    std::ranges::sort(rates[i]);
    const double median = rates[i][rates[i].size() / 2];
    if (i == 0) base = median;
    std::printf("%-18s %8.2f %7.0f%%\n", names[i].c_str(), median, 100 * median / base);
  }
}

int measure(int socket, size_t slice, size_t page_bytes) {
  uint64_t first = 0;
  read_all(socket, &first, sizeof first);
  const auto file = receive_file(socket);
  if (!file) fail(file.error().message);
  const auto segment = std::move(*device::RemoteSegment::map(dup(*file)));
  std::vector<std::string> names{"memcpy, 1 thread"};
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::shared_ptr<Remote>> remotes;
  for (const Subject& subject : subjects()) {
    uint64_t size = 0;
    read_all(socket, &size, sizeof size);
    Descriptor descriptor{std::string(size, '\0')};
    read_all(socket, descriptor.bytes.data(), size);
    transports.push_back(subject.make());
    if (transports.back()->passes_file()) descriptor.file = dup(*file);
    remotes.push_back(connect(*transports.back(), std::move(descriptor)));
    names.push_back(subject.name);
  }
  for (const bool spread : {false, true}) {
    const size_t pages = spread ? kArenaBytes / page_bytes : 1;
    std::vector<std::byte> into(spread ? size_t{256} << 20 : kBatchBytes);
    std::printf("%s\n", spread ? "\nspread over an arena" : "small buffers");
    table({first, page_bytes, slice, pages}, segment->bytes().data(), remotes, names, into);
  }
  return 0;
}

int run(int argc, char** argv) {
  const size_t slice = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 64) << 10;
  if (slice == 0 || slice > kBatchBytes) fail("slices are 1 to 2048 KiB");
  const size_t page_bytes = slice * kLayers;
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) fail("no socket");
  const pid_t child = fork();  // before any thread
  if (child == 0) {
    close(sockets[0]);
    _exit(serve(sockets[1], page_bytes));
  }
  close(sockets[1]);
  const int result = measure(sockets[0], slice, page_bytes);
  close(sockets[0]);
  waitpid(child, nullptr, 0);
  return result;
}

}  // namespace
}  // namespace tandem::kv

int main(int argc, char** argv) { return tandem::kv::run(argc, argv); }
