#include <array>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "net/stream.h"

namespace tandem::net {
namespace {

using namespace std::chrono_literals;

// Runs what is ready until nothing is; how many functions ran.
size_t run_ready(Reactor& reactor) {
  size_t total = 0;
  while (const size_t ran = reactor.context().poll()) total += ran;
  return total;
}

// A wait that is answered at once, by readiness to write, is a turn of the loop for nothing at each
// read.
TEST(Tcp, AConnectionThatWasMadeWakesItsReactorOnlyWhenSomethingCame) {
  Reactor reactor;
  auto listener = std::move(*listen_tcp(reactor, "127.0.0.1", 0));
  std::unique_ptr<Stream> accepted;
  std::unique_ptr<Stream> made;
  listener->accept([&](std::unique_ptr<Stream> stream) { accepted = std::move(stream); });
  const auto cancel = connect_tcp(
      reactor, "127.0.0.1", listener->port(), 5s,
      [&](Result<std::unique_ptr<Stream>> stream) { made = std::move(stream.value()); });
  for (int i = 0; i < 1000 && !(accepted && made); ++i) reactor.context().run_one_for(10ms);
  ASSERT_TRUE(accepted && made);
  (void)run_ready(reactor);
  for (const auto& [waits, writes] :
       {std::pair{made.get(), accepted.get()}, std::pair{accepted.get(), made.get()}}) {
    for (int turn = 0; turn < 3; ++turn) {
      bool woken = false;
      waits->wait_readable([&] { woken = true; });
      EXPECT_EQ(run_ready(reactor), 0U);
      char byte = 'x';
      const iovec piece{&byte, 1};
      ASSERT_EQ(writes->try_write(&piece, 1).bytes, 1U);
      for (int i = 0; i < 1000 && !woken; ++i) reactor.context().run_one_for(10ms);
      ASSERT_TRUE(woken);
      std::array<char, 8> bytes;
      EXPECT_EQ(waits->try_read(bytes.data(), bytes.size()).bytes, 1U);
    }
  }
}

}  // namespace
}  // namespace tandem::net
