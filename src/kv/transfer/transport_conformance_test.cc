// What every transport must do. Runs over all of this build, and over a module's file when
// TANDEM_TRANSPORT_MODULE names it.
#include <algorithm>
#include <csignal>

#include "kv/transfer/exposer_process.h"
#include "kv/transfer/transport_subject.h"

namespace tandem::kv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class TransportConformance : public ::testing::TestWithParam<TransportSubject> {
 protected:
  void start(uint64_t max_bytes_in_flight = uint64_t{64} << 20) {
    exposer_ = Exposer::start(GetParam());
    reader_ = Reader::start(GetParam(), max_bytes_in_flight);
    ASSERT_TRUE(exposer_);
    ASSERT_TRUE(reader_);
    auto remote = reader_->connect(exposer_->descriptor);
    ASSERT_TRUE(remote) << remote.error().message;
    remote_ = std::move(*remote);
  }
  std::byte* local(uint64_t at = 0) { return reader_->memory.data() + at; }

  std::unique_ptr<Exposer> exposer_;
  std::unique_ptr<Reader> reader_;
  std::shared_ptr<Remote> remote_;
};

TEST_P(TransportConformance, BytesAreRightForAnySizeAndOffset) {
  start();
  ASSERT_TRUE(remote_);
  std::mt19937_64 random(3);
  const uint64_t exposed = exposer_->memory().size();
  for (int round = 0; round < 40; ++round) {
    std::ranges::fill(reader_->memory, std::byte{0xEE});
    std::vector<Read> reads;
    std::vector<uint64_t> places;
    uint64_t place = 1;
    const uint64_t most = round % 4 == 0 ? 900'000 : 5000;
    for (int i = 0; i < 25; ++i) {
      const uint64_t bytes = 1 + random() % most;
      reads.push_back({random() % (exposed - bytes), local(place), bytes});
      places.push_back(place);
      place += bytes + 1 + random() % 40;
    }
    ASSERT_EQ(read_now(*remote_, reads), TransferStatus::kOk);
    for (size_t i = 0; i < reads.size(); ++i) {
      EXPECT_TRUE(reader_->holds(places[i], reads[i].offset, reads[i].bytes)) << round << " " << i;
      EXPECT_EQ(*local(places[i] - 1), std::byte{0xEE});
      EXPECT_EQ(*local(places[i] + reads[i].bytes), std::byte{0xEE});
    }
  }
}

TEST_P(TransportConformance, AllOfTheMemoryInOneRead) {
  start();
  ASSERT_TRUE(remote_);
  const uint64_t bytes = std::min<uint64_t>(exposer_->memory().size(), Reader::kBytes);
  const uint64_t offset = exposer_->memory().size() - bytes;
  ASSERT_EQ(read_now(*remote_, {{offset, local(), bytes}}), TransferStatus::kOk);
  EXPECT_TRUE(reader_->holds(0, offset, bytes));
}

TEST_P(TransportConformance, ManySmallReadsInOneBatch) {
  start();
  ASSERT_TRUE(remote_);
  std::vector<Read> reads;
  reads.reserve(4096);
  for (uint64_t i = 0; i < 4096; ++i) reads.push_back({i * 4097, local(i * 8), 8});
  ASSERT_EQ(read_now(*remote_, reads), TransferStatus::kOk);
  for (uint64_t i = 0; i < 4096; ++i) ASSERT_TRUE(reader_->holds(i * 8, i * 4097, 8)) << i;
}

TEST_P(TransportConformance, EveryBatchCompletesOnceAndBytesInFlightAreBounded) {
  constexpr uint64_t kBound = uint64_t{3} << 20;
  constexpr uint64_t kSize = uint64_t{1} << 20;
  start(kBound);
  ASSERT_TRUE(remote_);
  int full = 0;
  for (int round = 0; round < 8; ++round) {
    std::vector<Ending> endings(32);
    for (uint64_t i = 0; i < endings.size(); ++i) {
      const Read read{i * 1001, local(i * kSize), kSize};
      const auto until = std::chrono::steady_clock::now() + seconds(20);
      TransferStatus posted = TransferStatus::kFull;
      while (posted == TransferStatus::kFull && std::chrono::steady_clock::now() < until) {
        posted = remote_->post({&read, 1}, seconds(10), endings[i].done());
        EXPECT_LE(remote_->bytes_in_flight(), kBound);
        if (posted != TransferStatus::kFull) break;
        ++full;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      ASSERT_EQ(posted, TransferStatus::kOk);
    }
    for (uint64_t i = 0; i < endings.size(); ++i) {
      ASSERT_EQ(endings[i].get(), TransferStatus::kOk);
      ASSERT_TRUE(reader_->holds(i * kSize, i * 1001, kSize));
    }
  }
  EXPECT_GT(full, 0);
  EXPECT_EQ(remote_->bytes_in_flight(), 0U);
}

TEST_P(TransportConformance, ABatchOverTheBoundGoesAlone) {
  start(uint64_t{1} << 20);
  ASSERT_TRUE(remote_);
  EXPECT_EQ(read_now(*remote_, {{0, local(), uint64_t{8} << 20}}), TransferStatus::kOk);
  EXPECT_TRUE(reader_->holds(0, 0, uint64_t{8} << 20));
}

TEST_P(TransportConformance, RangesOutsideTheMemoryAreRefused) {
  start();
  ASSERT_TRUE(remote_);
  const uint64_t exposed = exposer_->memory().size();
  std::ranges::fill(reader_->memory, std::byte{0xEE});
  for (const auto& [offset, bytes] : {std::pair<uint64_t, uint64_t>{exposed, 1},
                                      {exposed - 1, 2},
                                      {UINT64_MAX, 2},
                                      {UINT64_MAX - 100, 101},
                                      {exposed + 4096, 64},
                                      {0, exposed + 1},
                                      {5, 0}}) {
    EXPECT_EQ(read_now(*remote_, {{offset, local(), bytes}}), TransferStatus::kInvalid)
        << offset << " " << bytes;
  }
  EXPECT_EQ(read_now(*remote_, {{0, nullptr, 5}}), TransferStatus::kInvalid);
  EXPECT_EQ(read_now(*remote_, {}), TransferStatus::kInvalid);
  EXPECT_EQ(reader_->memory[0], std::byte{0xEE});
  EXPECT_EQ(read_now(*remote_, {{exposed - 1, local(), 1}}), TransferStatus::kOk);
  EXPECT_TRUE(reader_->holds(0, exposed - 1, 1));
}

TEST_P(TransportConformance, AViewThatTheSenderDoesNotServeIsRefused) {
  start();
  ASSERT_TRUE(remote_);
  EXPECT_EQ(read_now(*remote_, {{0, local(), 1024, 1}}), TransferStatus::kInvalid);
  EXPECT_EQ(read_now(*remote_, {{0, local(), 1024}}), TransferStatus::kOk);
}

TEST_P(TransportConformance, DisconnectEndsEverythingAndFences) {
  for (int round = 0; round < 3; ++round) {
    start();
    ASSERT_TRUE(remote_);
    std::vector<Ending> endings(15);
    for (uint64_t i = 0; i < endings.size(); ++i) {
      const Read read{0, local(i << 21), uint64_t{2} << 20};
      ASSERT_EQ(remote_->post({&read, 1}, seconds(10), endings[i].done()), TransferStatus::kOk);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 * round));
    remote_->disconnect();
    for (const auto& ending : endings) EXPECT_TRUE(ending.ready()) << "completed before it returns";
    if (reader_->transport->fence() != Fence::kNone) {
      std::ranges::fill(reader_->memory, std::byte{0xEE});
      std::this_thread::sleep_for(milliseconds(20));
      EXPECT_TRUE(
          std::ranges::all_of(reader_->memory, [](auto b) { return b == std::byte{0xEE}; }));
    }
    const Read read{0, local(), 8};
    EXPECT_EQ(remote_->post({&read, 1}, seconds(1), Ending().done()), TransferStatus::kLost);
    remote_->disconnect();  // again is harmless
    // And a new connection works.
    auto again = reader_->connect(exposer_->descriptor);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(read_now(**again, {{7, local(), 9}}), TransferStatus::kOk);
    EXPECT_TRUE(reader_->holds(0, 7, 9));
    again->reset();
    remote_.reset();
  }
}

TEST_P(TransportConformance, TheEndOfTheSenderIsNoticed) {
  start();
  ASSERT_TRUE(remote_);
  std::vector<Ending> endings(10);
  for (uint64_t i = 0; i < endings.size(); ++i) {
    const Read read{0, local(i << 21), uint64_t{2} << 20};
    ASSERT_EQ(remote_->post({&read, 1}, seconds(3), endings[i].done()), TransferStatus::kOk);
  }
  exposer_.reset();
  for (uint64_t i = 0; i < endings.size(); ++i) {
    if (endings[i].get() == TransferStatus::kOk) {
      EXPECT_TRUE(reader_->holds(i << 21, 0, uint64_t{2} << 20));
    }
  }
  const auto before = std::chrono::steady_clock::now();
  EXPECT_NE(read_now(*remote_, {{0, local(), 8}}, seconds(3)), TransferStatus::kOk);
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(5));
}

TEST_P(TransportConformance, ADescriptorOfAnEarlierLifeIsRefused) {
  start();
  ASSERT_TRUE(remote_);
  Descriptor old = exposer_->descriptor;
  if (old.file >= 0) old.file = dup(old.file);
  remote_.reset();
  exposer_.reset();
  exposer_ = Exposer::start(GetParam());
  ASSERT_TRUE(exposer_);
  const auto remote = reader_->connect(old);
  if (remote) {
    EXPECT_NE(read_now(**remote, {{0, local(), 8}}, seconds(2)), TransferStatus::kOk);
  }
  if (old.file >= 0) close(old.file);
  const auto fresh = reader_->connect(exposer_->descriptor);
  ASSERT_TRUE(fresh) << fresh.error().message;
  EXPECT_EQ(read_now(**fresh, {{0, local(), 8}}), TransferStatus::kOk);
}

TEST_P(TransportConformance, NonsenseForADescriptorIsRefused) {
  auto reader = Reader::start(GetParam());
  ASSERT_TRUE(reader);
  for (const std::string& bytes : {std::string(), std::string("x"), std::string(300, '\xff')}) {
    const auto remote = reader->connect(Descriptor{bytes});
    if (remote) {
      EXPECT_NE(read_now(**remote, {{0, reader->memory.data(), 8}}, seconds(1)),
                TransferStatus::kOk);
    }
  }
}

TEST_P(TransportConformance, TwoPeersDoNotDisturbEachOther) {
  start();
  ASSERT_TRUE(remote_);
  auto second = Exposer::start(GetParam());
  ASSERT_TRUE(second);
  auto other = reader_->connect(second->descriptor);
  ASSERT_TRUE(other) << other.error().message;
  std::vector<Ending> endings(20);
  for (uint64_t i = 0; i < endings.size(); ++i) {
    const Read read{i * 999, local(i << 20), uint64_t{1} << 20};
    Remote& at = i % 2 == 0 ? *remote_ : **other;
    ASSERT_EQ(at.post({&read, 1}, seconds(10), endings[i].done()), TransferStatus::kOk);
  }
  remote_->disconnect();
  for (uint64_t i = 1; i < endings.size(); i += 2) {
    EXPECT_EQ(endings[i].get(), TransferStatus::kOk);
    EXPECT_TRUE(reader_->holds(i << 20, i * 999, uint64_t{1} << 20));
  }
  other->reset();
}

TEST_P(TransportConformance, AProcessThatIsKilledIsNoticed) {
  if (!GetParam().other_process) GTEST_SKIP() << "within one process only";
  auto process = ExposerProcess::start(GetParam());
  ASSERT_TRUE(process);
  reader_ = Reader::start(GetParam());
  ASSERT_TRUE(reader_);
  auto remote = reader_->connect(process->descriptor());
  ASSERT_TRUE(remote) << remote.error().message;
  ASSERT_EQ(read_now(**remote, {{11, local(), 1U << 20}}), TransferStatus::kOk);
  EXPECT_TRUE(reader_->holds(0, 11, 1U << 20));
  process->kill();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_NE(read_now(**remote, {{11, local(), 1U << 20}}, seconds(3)), TransferStatus::kOk);
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(5));
}

TEST_P(TransportConformance, AProcessThatIsStoppedRunsIntoTheDeadline) {
  if (!GetParam().other_process) GTEST_SKIP() << "within one process only";
  auto process = ExposerProcess::start(GetParam());
  ASSERT_TRUE(process);
  reader_ = Reader::start(GetParam());
  ASSERT_TRUE(reader_);
  auto remote = reader_->connect(process->descriptor());
  ASSERT_TRUE(remote) << remote.error().message;
  ASSERT_EQ(read_now(**remote, {{11, local(), 1U << 20}}), TransferStatus::kOk);
  process->signal(SIGSTOP);
  const auto before = std::chrono::steady_clock::now();
  const TransferStatus stopped =
      read_now(**remote, {{0, local(), uint64_t{24} << 20}}, milliseconds(500));
  const auto took = std::chrono::steady_clock::now() - before;
  if (GetParam().needs_owner) {
    EXPECT_EQ(stopped, TransferStatus::kTimeout);
    EXPECT_GE(took, milliseconds(400));
  } else {
    EXPECT_EQ(stopped, TransferStatus::kOk);
  }
  EXPECT_LT(took, seconds(3));
  process->signal(SIGCONT);
  if (reader_->transport->fence() == Fence::kLocal) {
    std::ranges::fill(reader_->memory, std::byte{0xEE});
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_TRUE(std::ranges::all_of(reader_->memory, [](auto b) { return b == std::byte{0xEE}; }))
        << "a late answer was written over memory that had been given back";
    EXPECT_EQ(read_now(**remote, {{5, local(), 64}}), TransferStatus::kOk) << "and it goes on";
    EXPECT_TRUE(reader_->holds(0, 5, 64));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TransportConformance, ::testing::ValuesIn(transport_subjects()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tandem::kv
