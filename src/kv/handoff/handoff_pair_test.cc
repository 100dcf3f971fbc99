#include <deque>
#include <functional>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "kv/handoff/handoff_test_support.h"

namespace tandem::kv {
namespace {

TEST(Handoff, ALongTransferRenewsItselfAndASilentOneEnds) {
  auto receive = copying();
  auto send = sender();
  (void)send.on_admitted(prompt(8), "", "", tags(2), 8, kStart);
  (void)send.on_prefill_done({{.token = 3}}, kStart);
  (void)send.on_open(1, 1, 5, kStart);
  (void)send.on_grant(1, {{"h", 1, 5}, {0}}, kStart);
  const protocol::HandoffKey key{"h", 1, 5};
  for (const uint32_t layer : {1U, 2U}) (void)receive.on_push({key, layer, 0, tags(2)}, kStart);
  (void)receive.on_commit({key, 3, {0}, 2, 1200, {{.token = 1}}, 8, 0}, kStart);
  TimePoint now = kStart;
  int renewals = 0;
  for (uint32_t i = 0; i < 5; ++i) {  // five of six blocks, 20 s each
    now += std::chrono::seconds(20);
    const auto actions = receive.on_copied(i / 2, i % 2, 1, CopyResult::kIntact, now);
    if (const auto* renew = sent<protocol::RenewFrame>(actions)) {
      ++renewals;
      send.on_renew(1, *renew, now);
    }
    EXPECT_TRUE(receive.on_time(now).empty());
    EXPECT_TRUE(send.on_time(now).empty()) << "alive after " << i << " blocks";
  }
  EXPECT_EQ(renewals, 5);
  send.on_renew(1, {{"h", 1, 6}}, now + std::chrono::seconds(29));
  EXPECT_NE(sent<protocol::AbortFrame>(send.on_time(now + std::chrono::seconds(31))), nullptr);
  EXPECT_EQ(count<StopCopies>(receive.on_time(now + std::chrono::seconds(31))), 1);
}

// Both machines, a network that delays and loses connections, random aborts: readers are balanced,
// every leg finishes exactly once, and the receiver starts only what was fully copied.
TEST(Handoff, RandomScheduleKeepsItsPromises) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    TimePoint now = kStart;
    auto send = sender();
    std::optional<ReceiveHandoff> receive(std::in_place, "h", 1, kShape, HandoffTimeouts{});
    std::deque<protocol::HandoffFrame> to_receiver;
    std::deque<protocol::HandoffFrame> to_sender;
    int readers = 0;
    int send_finished = 0;
    int receive_finished = 0;
    int started = 0;
    uint64_t copied = 0;
    bool connected = true;
    bool fenced = false;
    const int blocks = 1 + static_cast<int>(random() % 3);
    const auto do_send = [&](const SendActions& actions) {
      for (const auto& action : actions) {
        if (const auto* frame = std::get_if<SendFrame>(&action)) {
          if (connected) to_receiver.push_back(frame->frame);
        } else if (const auto* acquire = std::get_if<AcquireReaders>(&action)) {
          readers += static_cast<int>(acquire->pages.size());
        } else if (const auto* release = std::get_if<ReleaseReaders>(&action)) {
          readers -= static_cast<int>(release->pages.size());
          ASSERT_TRUE(!receive || receive->finished() || fenced || !connected || started)
              << "readers dropped under a copying peer";
        } else if (std::holds_alternative<FencePeer>(action)) {
          fenced = true;
          connected = false;
        } else {
          ++send_finished;
        }
      }
    };
    std::function<void(const ReceiveActions&)> do_receive = [&](const ReceiveActions& actions) {
      for (const auto& action : actions) {
        if (const auto* frame = std::get_if<SendToPeer>(&action)) {
          if (connected) to_sender.push_back(frame->frame);
        } else if (std::holds_alternative<ReservePages>(action)) {
          do_receive(random() % 8 == 0 ? receive->on_no_room(Error{503, "busy", ""})
                                       : receive->on_reserved({0}, now));
        } else if (const auto* copy = std::get_if<CopyPages>(&action)) {
          copied += copy->source.size();
          do_receive(receive->on_copied(copy->layer, copy->first_block,
                                        static_cast<uint32_t>(copy->source.size()),
                                        CopyResult::kIntact, now));
        } else if (std::holds_alternative<StartSequence>(action)) {
          ++started;
          ASSERT_EQ(copied, static_cast<uint64_t>(3 * blocks));
          do_receive(receive->on_started());
        } else if (std::holds_alternative<ReceiveFinished>(action)) {
          ++receive_finished;
        }
      }
    };
    do_receive(receive->open(now));
    int layer = 0;
    int stage = 0;
    for (int step = 0; step < 200 && !(send.idle() && receive->finished()); ++step) {
      switch (random() % 6) {
        case 0:
          if (stage == 0)
            do_send(send.on_admitted(prompt(4 * blocks), "", "", tags(blocks), 0, now));
          if (stage >= 1 && layer < 3) do_send(send.on_progress(layer++, 4 * blocks, now));
          if (stage > 3) do_send(send.on_prefill_done({{.token = 1}}, now));
          ++stage;
          break;
        case 1:
        case 2:
          if (!to_receiver.empty()) {
            const auto frame = to_receiver.front();
            to_receiver.pop_front();
            if (const auto* offer = std::get_if<protocol::OfferFrame>(&frame))
              do_receive(receive->on_offer(*offer, now));
            if (const auto* push = std::get_if<protocol::PushFrame>(&frame))
              do_receive(receive->on_push(*push, now));
            if (const auto* commit = std::get_if<protocol::CommitFrame>(&frame))
              do_receive(receive->on_commit(*commit, now));
            if (const auto* abort = std::get_if<protocol::AbortFrame>(&frame))
              do_receive(receive->on_abort(*abort));
          }
          break;
        case 3:
        case 4:
          if (!to_sender.empty()) {
            const auto frame = to_sender.front();
            to_sender.pop_front();
            if (std::holds_alternative<protocol::OpenFrame>(frame))
              do_send(send.on_open(1, 1, 42, now));
            if (const auto* grant = std::get_if<protocol::GrantFrame>(&frame))
              do_send(send.on_grant(1, *grant, now));
            if (const auto* busy = std::get_if<protocol::BusyFrame>(&frame))
              do_send(send.on_busy(1, *busy, now));
            if (const auto* ack = std::get_if<protocol::AckFrame>(&frame))
              do_send(send.on_ack(1, *ack, now));
            if (const auto* abort = std::get_if<protocol::AbortFrame>(&frame))
              do_send(send.on_abort(1, *abort, now));
            if (const auto* ack = std::get_if<protocol::AbortAckFrame>(&frame))
              do_send(send.on_abort_ack(1, *ack, now));
          }
          break;
        default: {
          const unsigned event = random() % 40;
          if (event == 0) do_send(send.on_cancel(Error{499, "client_gone", ""}, now));
          if (event == 1) do_receive(receive->on_cancel(Error{499, "client_gone", ""}));
          if (event == 2 && connected) {
            connected = false;
            to_receiver.clear();
            to_sender.clear();
            do_receive(receive->on_peer_lost());
            do_send(send.on_peer_lost(1, now));
          }
          break;
        }
      }
    }
    for (int tick = 0; tick < 100; ++tick) {
      now += std::chrono::seconds(10);
      do_send(send.on_time(now));
      do_receive(receive->on_time(now));
    }
    do_send(send.on_cancel(Error{504, "deadline", ""}, now));
    now += std::chrono::seconds(10);
    do_send(send.on_time(now));
    EXPECT_EQ(readers, 0) << seed;
    EXPECT_EQ(send_finished, 1) << seed;
    EXPECT_EQ(receive_finished, 1) << seed;
    EXPECT_TRUE(send.idle()) << seed;
  }
}

}  // namespace
}  // namespace tandem::kv
