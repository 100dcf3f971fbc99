#include "kv/transfer/fault_transport.h"

#include <algorithm>
#include <bit>

#include "kv/transfer/local_transport.h"
#include "kv/transfer/transport_subject.h"

namespace tandem::kv {
namespace {

using std::chrono::milliseconds;

struct Line {
  explicit Line(const FaultPlan& plan) {
    const auto make = [](uint64_t bound) -> Result<std::unique_ptr<Transport>> {
      return make_in_process_transport({.threads = 1, .max_bytes_in_flight = bound});
    };
    const TransportSubject subject{
        .name = "faulty",
        .make = make,
        .make_receiver = [=](uint64_t bound) -> Result<std::unique_ptr<Transport>> {
          return with_faults(std::move(*make(bound)), plan, bound);
        }};
    exposer = Exposer::start(subject);
    reader = Reader::start(subject);
    remote = *reader->connect(exposer->descriptor);
  }
  TransferStatus read(uint64_t offset, uint64_t bytes, Duration limit = std::chrono::seconds(5)) {
    std::ranges::fill(reader->memory, std::byte{0});
    return read_now(*remote, {{offset, reader->memory.data(), bytes}}, limit);
  }
  int wrong_bits(uint64_t offset, uint64_t bytes) const {
    int wrong = 0;
    for (uint64_t i = 0; i < bytes; ++i) {
      wrong +=
          std::popcount(std::to_integer<unsigned>(reader->memory[i] ^ pattern_byte(offset + i)));
    }
    return wrong;
  }
  std::unique_ptr<Exposer> exposer;
  std::unique_ptr<Reader> reader;
  std::shared_ptr<Remote> remote;
};

TEST(FaultTransport, ADroppedBatchEndsAtItsDeadline) {
  Line line({.drop = 1});
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(line.read(0, 1000, milliseconds(100)), TransferStatus::kTimeout);
  const auto took = std::chrono::steady_clock::now() - before;
  EXPECT_GE(took, milliseconds(100));
  EXPECT_LT(took, milliseconds(1000));
  EXPECT_EQ(line.remote->bytes_in_flight(), 0U);
}

TEST(FaultTransport, AFlipIsOneBitAndSaysNothing) {
  Line line({.flip = 1});
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(line.read(77, 5000), TransferStatus::kOk);
    EXPECT_EQ(line.wrong_bits(77, 5000), 1);
  }
}

TEST(FaultTransport, ATruncatedBatchSaysNothingEither) {
  Line line({.truncate = 1});
  int wrong = 0;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(line.read(77, 5000), TransferStatus::kOk);
    wrong += line.wrong_bits(77, 5000) > 0 ? 1 : 0;
  }
  EXPECT_GT(wrong, 15);
}

TEST(FaultTransport, ItDiesAtTheStepThatThePlanNames) {
  Line line({.die_at = 2});
  EXPECT_EQ(line.read(0, 100), TransferStatus::kOk);
  EXPECT_EQ(line.read(0, 100), TransferStatus::kOk);
  EXPECT_EQ(line.read(0, 100), TransferStatus::kLost);
  EXPECT_EQ(line.read(0, 100), TransferStatus::kLost);
}

TEST(FaultTransport, TheLinksRateIsWhatThePlanSays) {
  Line line({.bytes_per_second = 20e6});
  const auto before = std::chrono::steady_clock::now();
  std::vector<Ending> endings(20);
  for (const auto& ending : endings) {
    const Read read{0, line.reader->memory.data(), 200'000};
    ASSERT_EQ(line.remote->post({&read, 1}, std::chrono::seconds(5), Ending(ending).done()),
              TransferStatus::kOk);
  }
  for (const auto& ending : endings) EXPECT_EQ(ending.get(), TransferStatus::kOk);
  const double took = to_seconds(std::chrono::steady_clock::now() - before);
  EXPECT_GE(took, 0.2);
  EXPECT_LT(took, 0.6);
}

TEST(FaultTransport, ASeedRepeats) {
  std::vector<int> runs[2];
  for (auto& run : runs) {
    Line line({.seed = 5, .flip = 0.5});
    for (int i = 0; i < 30; ++i) {
      ASSERT_EQ(line.read(0, 100), TransferStatus::kOk);
      run.push_back(line.wrong_bits(0, 100));
    }
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_GT(std::ranges::count(runs[0], 1), 5);
  EXPECT_GT(std::ranges::count(runs[0], 0), 5);
}

TEST(FaultTransport, APlanIsReadFromText) {
  const auto plan = parse_fault_plan("seed=7,flip=0.25,rate=1e8,die_at=5,delay=1,delay_ms=20");
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->seed, 7U);
  EXPECT_EQ(plan->flip, 0.25);
  EXPECT_EQ(plan->bytes_per_second, 1e8);
  EXPECT_EQ(plan->die_at, 5);
  EXPECT_EQ(plan->longest_delay, milliseconds(20));
  EXPECT_TRUE(parse_fault_plan(""));
  EXPECT_FALSE(parse_fault_plan("")->any());
  for (const std::string text : {"flip", "flip=", "flip=x", "flip=1x", "flop=1", "flip=-1", "=1"})
    EXPECT_FALSE(parse_fault_plan(text)) << text;
}

}  // namespace
}  // namespace tandem::kv
