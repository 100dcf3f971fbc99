// Inside of MockServer: a generating request, registered while it runs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mock/mock_server.h"

namespace tandem::mock {

struct MockServer::Running {
  Running(MockServer& in, std::string name, MockRequest read, Fault wrong, int32_t rank)
      : server(in),
        engine(in.engines_[static_cast<size_t>(rank)]),
        rooms(in.rooms_),
        me(in.identity(rank)),
        id(std::move(name)),
        request(std::move(read)),
        fault(wrong),
        job(engine->job()),
        entry(in.running_.emplace(id, this)) {}
  ~Running() {
    server.running_.erase(entry);
    for (const auto& room : opened) {
      if (room->state == Room::State::kComputing || holds) rooms->abort(*room);
    }
    if (joined) engine->leave();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void cancel() {
    EngineModel::cancel(*job);
    if (call) call->cancel();
    for (const auto& room : opened) room->changed.notify();
  }

  MockServer& server;
  // Those of the incarnation that took the request.
  std::shared_ptr<EngineModel> engine;
  std::shared_ptr<Rooms> rooms;
  Identity me;
  std::string id;
  MockRequest request;
  Fault fault;
  std::shared_ptr<EngineModel::Job> job;
  Handoff handoff;
  bool holds = false;  // rooms end with the request
  bool joined = false;
  std::vector<std::shared_ptr<Room>> opened;
  std::vector<PromptFacts> facts;
  std::unique_ptr<net::ClientCall> call;
  std::multimap<std::string, Running*>::iterator entry;
};

}  // namespace tandem::mock
