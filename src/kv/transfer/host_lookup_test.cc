// A resolver that does not answer holds nobody up beyond the deadline.
#include "kv/transfer/host_lookup.h"

#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "kv/transfer/peer_connection.h"
#include "kv/transfer/tcp_transport.h"
#include "kv/transfer/tcp_wire.h"

namespace tandem::kv {
namespace {

using std::chrono::milliseconds;

TimePoint now() { return std::chrono::steady_clock::now(); }

// Names are looked up by the test, which answers when it ends.
class HostLookup : public ::testing::Test {
 protected:
  void TearDown() override {
    end_.set_value();
    // What is late has ended when there is room for all again.
    for (int i = 0; i < 500; ++i) {
      auto found = look_up_host_until({}, "localhost", 1, now() + std::chrono::seconds(1));
      if (found || found.error().status != 503) return;
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  std::promise<void> end_;
  const HostResolver resolver_ = [answer = end_.get_future().share()](
                                     const std::string& host, uint16_t /*port*/) -> HostAddresses {
    answer.wait();
    return make_error(502, "connect_failed", "no " + host);
  };
};

TEST_F(HostLookup, NumericAddressesNeedNoResolver) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    const auto found = look_up_host_until(resolver_, host, 80, now());
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->size(), 1U);
  }
}

TEST_F(HostLookup, ALateAnswerIsAnErrorByTheDeadline) {
  const TimePoint start = now();
  const auto found = look_up_host_until(resolver_, "slow.test", 80, start + milliseconds(100));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().status, 504);
  EXPECT_LT(now() - start, milliseconds(1000));
}

TEST_F(HostLookup, LookUpsUnderWayAreBounded) {
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    const auto found = look_up_host_until(resolver_, "slow.test", 80, now());
    ASSERT_FALSE(found);
    refused += found.error().status == 503 ? 1 : 0;
  }
  EXPECT_EQ(refused, 8);
}

TEST_F(HostLookup, DialingEndsByItsDeadline) {
  net::Reactor reactor;
  PeerOptions options;
  options.connect = milliseconds(200);
  options.resolver = resolver_;
  const TimePoint start = now();
  Result<std::shared_ptr<PeerConnection>> dialed = internal_error("");
  net::run_until_done(
      reactor, [](net::Reactor& on, PeerOptions with, auto& out) -> boost::asio::awaitable<void> {
        out = co_await dial_peer(on, "tcp:slow.test:1", with);
      }(reactor, options, dialed));
  ASSERT_FALSE(dialed);
  EXPECT_EQ(dialed.error().code, "connect_timeout") << dialed.error().message;
  EXPECT_LT(now() - start, milliseconds(1500));
}

TEST_F(HostLookup, DataStreamsEndByTheirDeadlineAndSoDoesTheTransport) {
  const TimePoint start = now();
  std::promise<Error> ended;
  {
    const auto transport = make_tcp_transport({.resolver = resolver_});
    transport->connect({tcp::encode_address({.port = 1, .epoch = 2, .exposed = 3})},
                       {std::string(16, 'i'), "k"}, "slow.test", milliseconds(200),
                       [&](auto result) { ended.set_value(result.error()); });
  }
  const Error error = ended.get_future().get();
  EXPECT_EQ(error.code, "transfer_timeout") << error.message;
  EXPECT_LT(now() - start, milliseconds(1500));
}

}  // namespace
}  // namespace tandem::kv
