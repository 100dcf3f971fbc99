// How fast a transport module reads, next to ucx_perftest's ucp_get with the same sizes in the same
// run, turn by turn.
//
//   bench_transport_module MODULE.so [--settings "key=value,key=value"] [--seconds 1] [--rounds 5]
//                          [--sizes 65536,1048576] [--perftest]
//                          [--spread]
//
// The sender is a process of its own (this program, started again). The receiver posts batches of
// reads through the adapter that workers use, with at most 32 reads in flight, as `-O 32` does for
// ucx_perftest. That one reads the same bytes again and again, so by default this does too; with
// --spread it goes through 64 MiB on both sides, as pages of KV would. Rates are medians over the
// rounds, in GB/s (10^9).
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kv/transfer/module_transport.h"

extern char** environ;

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMemory = size_t{64} << 20;
constexpr int kInFlight = 32;

struct Options {
  std::string module;
  std::string settings;
  double seconds = 1;
  int rounds = 5;
  std::vector<uint64_t> sizes{4096, 65536, 1048576, 4194304};
  bool perftest = false;
  bool spread = false;
};

std::string lines(std::string settings) {
  std::ranges::replace(settings, ',', '\n');
  return settings;
}

std::unique_ptr<kv::Transport> load(const Options& options) {
  auto made = kv::load_transport_module(options.module, {.settings = lines(options.settings)});
  if (!made) {
    std::fprintf(stderr, "%s\n", made.error().message.c_str());
    std::exit(1);
  }
  return std::move(*made);
}

// The sender: descriptor to stdout, then serves until stdin closes.
int serve(const Options& options) {
  std::vector<std::byte> memory(kMemory, std::byte{1});
  auto transport = load(options);
  const auto descriptor = transport->expose(memory, -1);
  if (!descriptor) return 1;
  const auto size = static_cast<uint32_t>(descriptor->bytes.size());
  std::fwrite(&size, sizeof size, 1, stdout);
  std::fwrite(descriptor->bytes.data(), size, 1, stdout);
  std::fflush(stdout);
  return std::getchar() == EOF ? 0 : 1;
}

class Sender {
 public:
  explicit Sender(const Options& options) {
    int out[2];
    int in[2];
    if (pipe(out) != 0 || pipe(in) != 0) std::exit(1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_addclose(&actions, in[1]);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    std::string self = "/proc/self/exe";
    std::string word = "--serve";
    std::string module = options.module;
    std::string flag = "--settings";
    std::string settings = options.settings;
    char* arguments[] = {self.data(), word.data(),     module.data(),
                         flag.data(), settings.data(), nullptr};
    if (posix_spawn(&pid_, self.c_str(), &actions, nullptr, arguments, environ) != 0) std::exit(1);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(in[0]);
    input_ = in[1];
    uint32_t size = 0;
    FILE* from = fdopen(out[0], "r");
    if (std::fread(&size, sizeof size, 1, from) != 1 || size > kv::kMaxDescriptorBytes)
      std::exit(1);
    descriptor.bytes.resize(size);
    if (std::fread(descriptor.bytes.data(), size, 1, from) != 1) std::exit(1);
    std::fclose(from);
  }
  ~Sender() {
    close(input_);
    waitpid(pid_, nullptr, 0);
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  kv::Descriptor descriptor;

 private:
  pid_t pid_ = -1;
  int input_ = -1;
};

// GB/s of reads of one size; nothing when a read fails.
std::optional<double> read_rate(kv::Remote& remote, std::vector<std::byte>& into, uint64_t size,
                                const Options& options, double seconds) {
  std::mutex lock;
  std::condition_variable changed;
  int in_flight = 0;
  uint64_t bytes = 0;
  bool failed = false;
  uint64_t at = 0;
  // Small reads travel in batches, as a layer's pages do.
  const int per_batch = static_cast<int>(std::clamp<uint64_t>(65536 / size, 1, 8));
  const auto begin = Clock::now();
  const auto until = begin + std::chrono::duration<double>(seconds);
  while (Clock::now() < until && !failed) {
    std::vector<kv::Read> reads;
    for (int i = 0; i < per_batch; ++i) {
      reads.push_back({at, into.data() + at, size});
      if (options.spread) at = at + 2 * size <= kMemory ? at + size : 0;
    }
    {
      std::unique_lock guard(lock);
      changed.wait(guard, [&] { return in_flight + per_batch <= kInFlight; });
      in_flight += per_batch;
    }
    const auto posted =
        remote.post(reads, std::chrono::seconds(20), [&, per_batch](kv::TransferStatus status) {
          const std::lock_guard guard(lock);
          in_flight -= per_batch;
          if (status == kv::TransferStatus::kOk) bytes += size * static_cast<uint64_t>(per_batch);
          failed |= status != kv::TransferStatus::kOk;
          changed.notify_one();
        });
    if (posted != kv::TransferStatus::kOk) return std::nullopt;
  }
  std::unique_lock guard(lock);
  changed.wait(guard, [&] { return in_flight == 0; });
  const std::chrono::duration<double> took = Clock::now() - begin;
  if (failed) return std::nullopt;
  return static_cast<double>(bytes) / took.count() / 1e9;
}

// ucx_perftest's last line: "Final: iterations, latencies (3), bandwidth average and overall in
// MB/s, ...". Its MB are 2^20.
std::optional<double> perftest_rate(const Options& options, uint64_t size, double expected) {
  std::string environment;
  std::istringstream settings(lines(options.settings));
  for (std::string line; std::getline(settings, line);) {
    if (line.starts_with("ucx.")) environment += "UCX_" + line.substr(4) + " ";
    if (line == "bind_host=127.0.0.1") environment += "UCX_NET_DEVICES=lo ";
  }
  static int port = 23400;
  ++port;
  const auto iterations = static_cast<uint64_t>(
      std::max(200.0, expected * 1e9 * options.seconds / static_cast<double>(size)));
  const std::string common = environment + "timeout 60 ucx_perftest -p " + std::to_string(port);
  const std::string command = common + " > /dev/null 2>&1 & sleep 0.5; " + common +
                              " 127.0.0.1 -t ucp_get -O " + std::to_string(kInFlight) +
                              " -w 50 -s " + std::to_string(size) + " -n " +
                              std::to_string(iterations) + " 2>/dev/null; wait";
  FILE* output = popen(command.c_str(), "r");
  if (output == nullptr) return std::nullopt;
  std::optional<double> rate;
  char line[512];
  while (std::fgets(line, sizeof line, output) != nullptr) {
    double latency[3];
    double average = 0;
    double overall = 0;
    uint64_t count = 0;
    if (std::sscanf(line, "Final: %lu %lf %lf %lf %lf %lf", &count, &latency[0], &latency[1],
                    &latency[2], &average, &overall) == 6)
      rate = overall * 1048576 / 1e9;
  }
  pclose(output);
  return rate;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

int run(const Options& options) {
  Sender sender(options);
  auto transport = load(options);
  std::vector<std::byte> into(kMemory, std::byte{2});
  if (!transport->register_local(into)) return 1;
  std::promise<Result<std::shared_ptr<kv::Remote>>> connected;
  transport->connect(sender.descriptor, {}, "127.0.0.1", std::chrono::seconds(10),
                     [&](auto remote) { connected.set_value(std::move(remote)); });
  const auto remote = connected.get_future().get();
  if (!remote) {
    std::fprintf(stderr, "%s\n", remote.error().message.c_str());
    return 1;
  }
  std::printf("%-10s %12s %14s %8s   (GB/s, medians of %d)\n", "bytes",
              std::string(transport->name()).c_str(), options.perftest ? "ucx_perftest" : "-",
              "ratio", options.rounds);
  for (const uint64_t size : options.sizes) {
    std::vector<double> ours;
    std::vector<double> theirs;
    const auto warm = read_rate(**remote, into, size, options, 0.1);
    if (!warm) return 1;
    for (int round = 0; round < options.rounds; ++round) {
      const auto rate = read_rate(**remote, into, size, options, options.seconds);
      if (!rate) return 1;
      ours.push_back(*rate);
      if (!options.perftest) continue;
      const auto peer = perftest_rate(options, size, *rate);
      if (!peer) {
        std::fprintf(stderr, "ucx_perftest (Debian: ucx-utils) gave no result\n");
        return 1;
      }
      theirs.push_back(*peer);
    }
    std::printf("%-10lu %12.3f %14.3f %8.2f\n", size, median(ours), median(theirs),
                options.perftest ? median(ours) / median(theirs) : 0);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::Options options;
  bool serve = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (word == "--serve") {
      serve = true;
    } else if (word == "--settings") {
      options.settings = value();
    } else if (word == "--seconds") {
      options.seconds = std::atof(value().c_str());
    } else if (word == "--rounds") {
      options.rounds = std::max(1, std::atoi(value().c_str()));
    } else if (word == "--perftest") {
      options.perftest = true;
    } else if (word == "--spread") {
      options.spread = true;
    } else if (word == "--sizes") {
      options.sizes.clear();
      std::istringstream list(value());
      for (std::string size; std::getline(list, size, ',');)
        options.sizes.push_back(std::strtoull(size.c_str(), nullptr, 10));
    } else {
      options.module = word;
    }
  }
  const bool sane = std::ranges::all_of(
      options.sizes, [](uint64_t size) { return size > 0 && size <= tandem::kMemory; });
  if (options.module.empty() || !sane) {
    std::fprintf(stderr,
                 "usage: bench_transport_module MODULE.so [--settings k=v,k=v] "
                 "[--seconds S] [--rounds N] [--sizes A,B] [--perftest] [--spread]\n");
    return 2;
  }
  return serve ? tandem::serve(options) : tandem::run(options);
}
