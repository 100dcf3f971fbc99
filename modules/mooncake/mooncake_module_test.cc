// What the Mooncake module does when the engine under it misbehaves: the stub's faults. (That it
// works when nothing does is the conformance suite's, run over the same two files.)
#include <cstdlib>
#include <future>
#include <vector>

#include <gtest/gtest.h>

#include "kv/transfer/module_transport.h"

namespace tandem::kv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Result<std::unique_ptr<Transport>> load(const std::string& settings) {
  return load_transport_module(TANDEM_MOONCAKE_MODULE, {.settings = settings});
}
const std::string kStub = std::string("library=") + TANDEM_STUB_LIBRARY + "\n";

class MooncakeModule : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("TANDEM_STUB_FAULTS"); }

  // A sender without faults, and a receiver with these.
  void start(const std::string& faults) {
    auto sender = load(kStub);
    ASSERT_TRUE(sender) << sender.error().message;
    sender_ = std::move(*sender);
    for (size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(i * 7);
    auto descriptor = sender_->expose(source_, -1);
    ASSERT_TRUE(descriptor) << descriptor.error().message;
    descriptor_ = *descriptor;
    setenv("TANDEM_STUB_FAULTS", faults.c_str(), 1);
    auto receiver = load(kStub);
    ASSERT_TRUE(receiver) << receiver.error().message;
    receiver_ = std::move(*receiver);
    ASSERT_TRUE(receiver_->register_local(target_));
    EXPECT_EQ(receiver_->fence(), Fence::kNone);
  }

  Result<std::shared_ptr<Remote>> connect(Duration limit = seconds(5)) {
    std::promise<Result<std::shared_ptr<Remote>>> made;
    receiver_->connect(descriptor_, {}, "", limit,
                       [&](auto remote) { made.set_value(std::move(remote)); });
    return made.get_future().get();
  }

  std::future<TransferStatus> post(Remote& remote, uint64_t offset, uint64_t bytes,
                                   Duration limit) {
    auto ended = std::make_shared<std::promise<TransferStatus>>();
    const Read read{offset, target_.data() + offset, bytes};
    const TransferStatus posted = remote.post(
        {&read, 1}, limit, [ended](TransferStatus status) { ended->set_value(status); });
    EXPECT_EQ(posted, TransferStatus::kOk);
    return ended->get_future();
  }
  bool arrived(uint64_t offset, uint64_t bytes) const {
    return std::equal(target_.begin() + static_cast<std::ptrdiff_t>(offset),
                      target_.begin() + static_cast<std::ptrdiff_t>(offset + bytes),
                      source_.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  std::vector<std::byte> source_ = std::vector<std::byte>(8 << 20);
  std::vector<std::byte> target_ = std::vector<std::byte>(8 << 20);
  std::unique_ptr<Transport> sender_, receiver_;
  Descriptor descriptor_;
};

TEST_F(MooncakeModule, WhatItCannotUseIsSaidAtTheStart) {
  const auto refusal = [](const std::string& settings) {
    const auto made = load(settings);
    EXPECT_FALSE(made);
    return made ? "" : made.error().message;
  };
  EXPECT_NE(refusal("").find("needs the setting library"), std::string::npos);
  EXPECT_NE(refusal("library=/nowhere/x.so").find("cannot be loaded"), std::string::npos);
  EXPECT_NE(refusal("library=libm.so.6").find("does not export createTransferEngine"),
            std::string::npos);
  EXPECT_NE(refusal(kStub + "colour=red").find("colour is not known"), std::string::npos);
  EXPECT_NE(refusal(kStub + "metadata=etcd://x").find("does not start"), std::string::npos);
  EXPECT_NE(refusal(kStub + "protocol=pigeon").find("no transport pigeon"), std::string::npos);
}

TEST_F(MooncakeModule, AFailedRequestFailsItsBatchAndNoOther) {
  start("fail_every=3");  // the first request reads the token
  const auto remote = connect();
  ASSERT_TRUE(remote) << remote.error().message;
  EXPECT_EQ(post(**remote, 0, 4096, seconds(5)).get(), TransferStatus::kOk);
  EXPECT_EQ(post(**remote, 8192, 4096, seconds(5)).get(), TransferStatus::kFailed);
  EXPECT_EQ(post(**remote, 16384, 4096, seconds(5)).get(), TransferStatus::kOk);
  EXPECT_TRUE(arrived(0, 4096) && arrived(16384, 4096));
  EXPECT_EQ((*remote)->bytes_in_flight(), 0U);
}

TEST_F(MooncakeModule, ATransferThatNeverEndsRunsIntoItsDeadline) {
  start("hang_every=2");
  const auto remote = connect();
  ASSERT_TRUE(remote) << remote.error().message;
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(post(**remote, 0, 4096, milliseconds(200)).get(), TransferStatus::kTimeout);
  const auto took = std::chrono::steady_clock::now() - before;
  EXPECT_GE(took, milliseconds(190));
  EXPECT_LT(took, seconds(1)) << "the module ends it, not the adapter";
  EXPECT_EQ(post(**remote, 0, 4096, seconds(5)).get(), TransferStatus::kOk);
  auto hangs = post(**remote, 8192, 4096, seconds(60));
  (*remote)->disconnect();  // does not wait for it
  EXPECT_EQ(hangs.get(), TransferStatus::kLost);
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(10));
}

TEST_F(MooncakeModule, ARefusedSubmitFailsItsBatch) {
  start("refuse_every=2");
  const auto remote = connect();
  ASSERT_TRUE(remote) << remote.error().message;
  EXPECT_EQ(post(**remote, 0, 8 << 20, seconds(5)).get(), TransferStatus::kFailed);
  EXPECT_EQ(post(**remote, 0, 8 << 20, seconds(5)).get(), TransferStatus::kOk);
  EXPECT_TRUE(arrived(0, 8 << 20));
}

TEST_F(MooncakeModule, APeerThatIsSlowToOpenRunsIntoTheDeadline) {
  start("open_ms=700");
  const auto before = std::chrono::steady_clock::now();
  const auto late = connect(milliseconds(100));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, "transfer_timeout");
  EXPECT_LT(std::chrono::steady_clock::now() - before, milliseconds(600));
  EXPECT_TRUE(connect(seconds(5)));
}

TEST_F(MooncakeModule, ASlowPeerIsReadInTheEnd) {
  start("slow_ms=20");
  const auto remote = connect();
  ASSERT_TRUE(remote) << remote.error().message;
  EXPECT_EQ(post(**remote, 0, 8 << 20, seconds(10)).get(), TransferStatus::kOk);
  EXPECT_TRUE(arrived(0, 8 << 20));
}

// A worker's one arena is both read from and read into.
TEST_F(MooncakeModule, TheSameMemoryCanBeExposedAndRegistered) {
  start("");
  std::vector<std::byte> arena(1 << 20);
  auto first = load(kStub);
  ASSERT_TRUE(first);
  EXPECT_TRUE((*first)->expose(arena, -1));
  EXPECT_TRUE((*first)->register_local(arena));
  auto second = load(kStub);
  ASSERT_TRUE(second);
  EXPECT_TRUE((*second)->register_local(arena));
  EXPECT_TRUE((*second)->expose(arena, -1));
}

}  // namespace
}  // namespace tandem::kv
