#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <gtest/gtest.h>

#include "net/stream.h"

namespace tandem::net {
namespace {

using namespace std::chrono_literals;

using WorkGuard = boost::asio::executor_work_guard<boost::asio::io_context::executor_type>;

// Runs what is ready until nothing is; how many functions ran.
size_t run_ready(Reactor& reactor) {
  size_t total = 0;
  while (const size_t ran = reactor.context().poll()) total += ran;
  return total;
}

// Runs until `done`, for a minute at most; whether it was.
bool run_until(Reactor& reactor, const std::function<bool()>& done) {
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (!done() && std::chrono::steady_clock::now() < limit) reactor.context().run_one_for(10ms);
  return done();
}

class Tcp : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = listen_tcp(reactor_, "127.0.0.1", 0);
    ASSERT_TRUE(listener);
    (*listener)->accept([&](std::unique_ptr<Stream> stream) { accepted_ = std::move(stream); });
    (void)connect_tcp(reactor_, "127.0.0.1", (*listener)->port(), 60s,
                      [&](Result<std::unique_ptr<Stream>> stream) {
                        ASSERT_TRUE(stream) << stream.error().message;
                        made_ = std::move(*stream);
                      });
    ASSERT_TRUE(run_until(reactor_, [&] { return accepted_ && made_; }));
    (void)run_ready(reactor_);
  }

  Reactor reactor_;
  const WorkGuard guard_{reactor_.context().get_executor()};  // else the loop ends between waits
  std::unique_ptr<Stream> accepted_;
  std::unique_ptr<Stream> made_;
};

// A wait that is answered at once, by readiness to write, is a turn of the loop for nothing at each
// read.
TEST_F(Tcp, AConnectionThatWasMadeWakesItsReactorOnlyWhenSomethingCame) {
  for (const auto& [waits, writes] :
       {std::pair{made_.get(), accepted_.get()}, std::pair{accepted_.get(), made_.get()}}) {
    for (int turn = 0; turn < 3; ++turn) {
      bool woken = false;
      waits->wait_readable([&] { woken = true; });
      EXPECT_EQ(run_ready(reactor_), 0U);
      char byte = 'x';
      const iovec piece{&byte, 1};
      ASSERT_EQ(writes->try_write(&piece, 1).bytes, 1U);
      ASSERT_TRUE(run_until(reactor_, [&] { return woken; }));
      std::array<char, 8> bytes;
      EXPECT_EQ(waits->try_read(bytes.data(), bytes.size()).bytes, 1U);
    }
  }
}

TEST_F(Tcp, AWriteThatHasToWaitOnAConnectionThatWasMadeIsWokenWhenThePeerReads) {
  std::vector<char> bytes(size_t{1} << 16, 'x');
  const iovec piece{bytes.data(), bytes.size()};
  IoResult put;
  size_t written = 0;
  while ((put = made_->try_write(&piece, 1)).kind == IoResult::Kind::kDone) written += put.bytes;
  ASSERT_EQ(put.kind, IoResult::Kind::kWouldBlock);
  bool woken = false;
  made_->wait_writable([&] { woken = true; });
  (void)run_ready(reactor_);
  ASSERT_FALSE(woken);
  size_t drained = 0;
  ASSERT_TRUE(run_until(reactor_, [&] {
    IoResult got;
    while ((got = accepted_->try_read(bytes.data(), bytes.size())).kind == IoResult::Kind::kDone)
      drained += got.bytes;
    return woken;
  }));
  EXPECT_GT(drained, 0U);
  EXPECT_LE(drained, written);
  EXPECT_EQ(made_->try_write(&piece, 1).kind, IoResult::Kind::kDone);
}

}  // namespace
}  // namespace tandem::net
