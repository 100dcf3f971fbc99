#include "mock/rooms.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tandem::mock {

namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

// A decode request that waits, counted while it does.
struct Rooms::Wait {
  explicit Wait(Rooms& in) : rooms(in) { ++rooms.counts_.waiting; }
  ~Wait() { --rooms.counts_.waiting; }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  Rooms& rooms;
};

Result<std::shared_ptr<Room>> Rooms::open(const std::string& id) {
  if (rooms_.contains(id))
    return make_error(409, "room_exists", "there is a request with the id " + id + " already");
  auto room = std::make_shared<Room>(reactor_, id);
  rooms_[id] = room;
  ++counts_.open;
  ++counts_.opened;
  arrived_.notify();
  return room;
}

void Rooms::ready(Room& room, const PromptFacts& facts, TimePoint expires) {
  if (room.state != Room::State::kComputing) return;
  room.facts = facts;
  room.state = Room::State::kReady;
  room.expires = expires;
  arrived_.notify();
}

void Rooms::end(Room& room, Room::State state, int64_t& count) {
  if (room.state != Room::State::kComputing && room.state != Room::State::kReady) return;
  room.state = state;
  ++count;
  --counts_.open;
  room.changed.notify();
  rooms_.erase(room.id);
  arrived_.notify();
}

void Rooms::abort(Room& room) { end(room, Room::State::kAborted, counts_.aborted); }

net::asio::awaitable<Result<PromptFacts>> Rooms::take(std::string id, TimePoint until, int32_t rank,
                                                      std::shared_ptr<bool> gone) {
  const Wait wait(*this);
  std::shared_ptr<Room> room;
  while (!*gone && now() < until) {
    if (!room) {
      const auto at = rooms_.find(id);
      if (at != rooms_.end()) room = at->second;
    }
    if (room && rank >= 0 && room->rank != rank)
      co_return make_error(409, "wrong_rank", "the room is at rank " + std::to_string(room->rank));
    if (room && room->state == Room::State::kReady) {
      const PromptFacts facts = room->facts;
      end(*room, Room::State::kTaken, counts_.taken);
      co_return facts;
    }
    if (room && room->state != Room::State::kComputing) {
      co_return room->state == Room::State::kTaken
          ? make_error(409, "taken", "somebody else took it")
          : make_error(410, room->state == Room::State::kExpired ? "expired" : "aborted",
                       "prefill gave it up");
    }
    co_await arrived_.wait_for(std::min<Duration>(until - now(), std::chrono::seconds(1)));
  }
  ++counts_.unclaimed;
  co_return make_error(504, "no_partner", "no prefill request with the id " + id + " came");
}

void Rooms::expire(TimePoint at) {
  std::vector<std::shared_ptr<Room>> over;
  for (const auto& [id, room] : rooms_) {
    if (room->expires <= at) over.push_back(room);
  }
  for (const auto& room : over) end(*room, Room::State::kExpired, counts_.expired);
}

void Rooms::clear() {
  std::vector<std::shared_ptr<Room>> all;
  all.reserve(rooms_.size());
  for (const auto& [id, room] : rooms_) all.push_back(room);
  for (const auto& room : all) abort(*room);
}

}  // namespace tandem::mock
