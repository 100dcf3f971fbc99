// BF16 pages into narrower ones over TCP on loopback: converted by the sender's data streams, or
// read as they are and converted by the receiver's one thread, as handoffs do it. Bytes per second
// are of BF16 KV taken over; "wire" is what travelled for each of them.
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <future>
#include <mutex>
#include <vector>

#include <benchmark/benchmark.h>

#include "kv/transfer/tcp_transport.h"
#include "ops/cpu/dispatch.h"
#include "worker/page_views.h"

namespace tandem::worker {
namespace {

constexpr uint32_t kLayers = 16;
constexpr size_t kPages = 256;
constexpr size_t kBatchPages = 32;
constexpr size_t kInFlight = 12;
constexpr size_t kBatches = 96;  // of one iteration

ops::PageLayout layout_of(ops::KvDtype dtype) {
  return {.dtype = dtype,
          .layers = kLayers,
          .kv_heads = 8,
          .head_dim = 128,
          .block_tokens = 16,
          .groups = 1};
}

struct Ends {
  explicit Ends(const ops::PageLayout& from) : memory(from.page_bytes() * kPages) {
    auto* values = reinterpret_cast<uint16_t*>(memory.data());
    for (size_t i = 0; i < memory.size() / 2; ++i)
      values[i] = static_cast<uint16_t>(0x3F00 + i * 2654435761U % 256);
    sender->serve_views(std::make_shared<PageViews>(ops::cpu::kernels_for(ops::cpu::machine_isa()),
                                                    from, ops::KvScales{}, kLayers));
    const auto exposed = sender->expose(memory, -1);
    const kv::PeerKey key{"bench-peer-00000", std::string(32, 'k')};
    sender->admit(key);
    std::promise<Result<std::shared_ptr<kv::Remote>>> connected;
    receiver->connect(*exposed, key, "127.0.0.1", std::chrono::seconds(5),
                      [&](auto result) { connected.set_value(std::move(result)); });
    remote = std::move(*connected.get_future().get());
  }
  std::vector<std::byte> memory;
  std::unique_ptr<kv::Transport> sender = kv::make_tcp_transport({});
  std::unique_ptr<kv::Transport> receiver = kv::make_tcp_transport({});
  std::shared_ptr<kv::Remote> remote;
};

void take_over(benchmark::State& state) {
  const ops::cpu::Kernels& kernels = ops::cpu::kernels_for(ops::cpu::machine_isa());
  const bool by_sender = state.range(1) != 0;
  const ops::PageLayout from = layout_of(ops::KvDtype::kBF16);
  const ops::PageLayout to = layout_of(static_cast<ops::KvDtype>(state.range(0)));
  const size_t bytes = by_sender ? to.layer_bytes() : from.layer_bytes();
  Ends ends(from);
  std::vector<std::byte> stage(kInFlight * kBatchPages * bytes);
  std::vector<std::byte> pages(kPages * to.page_bytes());
  std::mutex lock;
  std::condition_variable ended;
  struct Batch {
    size_t slot = 0, number = 0;
  };
  std::deque<Batch> arrived;
  for (auto _ : state) {
    std::vector<size_t> free(kInFlight);
    for (size_t i = 0; i < kInFlight; ++i) free[i] = i;
    size_t posted = 0, taken = 0;
    while (taken < kBatches) {
      while (posted < kBatches && !free.empty()) {
        const Batch batch{free.back(), posted++};
        free.pop_back();
        const auto layer = static_cast<uint32_t>(batch.number % kLayers);
        const size_t first = batch.number / kLayers * kBatchPages % kPages;
        std::vector<kv::Read> reads;
        for (size_t i = 0; i < kBatchPages; ++i) {
          std::byte* into = by_sender ? pages.data() + (first + i) * to.page_bytes() + layer * bytes
                                      : stage.data() + (batch.slot * kBatchPages + i) * bytes;
          reads.push_back({(first + i) * from.page_bytes() + layer * from.layer_bytes(), into,
                           bytes,
                           by_sender ? PageViews::number(to.dtype, layer, kLayers) : uint16_t{0}});
        }
        const auto status =
            ends.remote->post(reads, std::chrono::seconds(10), [&, batch](kv::TransferStatus end) {
              if (end != kv::TransferStatus::kOk) std::abort();
              const std::lock_guard guard(lock);
              arrived.push_back(batch);
              ended.notify_one();
            });
        if (status != kv::TransferStatus::kOk) std::abort();
      }
      Batch batch;
      {
        std::unique_lock guard(lock);
        ended.wait(guard, [&] { return !arrived.empty(); });
        batch = arrived.front();
        arrived.pop_front();
      }
      const auto layer = static_cast<int32_t>(batch.number % kLayers);
      const size_t first = batch.number / kLayers * kBatchPages % kPages;
      for (size_t i = 0; i < kBatchPages && !by_sender; ++i) {
        convert_page_layer(kernels, {}, layer, from,
                           stage.data() + (batch.slot * kBatchPages + i) * bytes, to,
                           pages.data() + (first + i) * to.page_bytes() +
                               static_cast<size_t>(layer) * to.layer_bytes());
      }
      free.push_back(batch.slot);
      ++taken;
    }
  }
  const auto layers = static_cast<double>(state.iterations()) * kBatches * kBatchPages;
  state.SetBytesProcessed(static_cast<int64_t>(layers * static_cast<double>(from.layer_bytes())));
  state.counters["wire"] = static_cast<double>(bytes) / static_cast<double>(from.layer_bytes());
}
BENCHMARK(take_over)
    ->ArgNames({"dtype", "by_sender"})
    ->ArgsProduct({{static_cast<int64_t>(ops::KvDtype::kFp8Static),
                    static_cast<int64_t>(ops::KvDtype::kFp8Inline),
                    static_cast<int64_t>(ops::KvDtype::kInt8Inline)},
                   {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tandem::worker
