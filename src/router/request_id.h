// The name of a request that the client, the access log and the workers share: x-request-id. The
// client's own when it is sane, else a new one; on every answer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "net/http_server.h"

namespace tandem::router {

inline constexpr std::string_view kRequestId = "x-request-id";

// 32 hex digits from the system's random numbers.
std::string mint_id();

// Eight hex digits of `bits`.
std::string short_id(uint64_t bits);

// The W3C trace context's traceparent: the client's when it is one, else a new one.
std::string traceparent_of(const net::Headers& headers);

// The client's when it has 1 to 128 letters, digits and marks out of "-_.:/+=@|", else a new one.
std::string request_id_of(const net::Headers& headers);

// Passes everything on and adds the request's id to the head of its answer.
class IdentifiedResponder final : public net::HttpResponder {
 public:
  IdentifiedResponder(net::HttpResponder& to, std::string id) : to_(to), id_(std::move(id)) {}

  const std::string& id() const { return id_; }

  net::asio::awaitable<Status> send(int status, net::Headers headers, std::string body) override {
    headers.set(kRequestId, id_);
    return to_.send(status, std::move(headers), std::move(body));
  }
  using net::HttpResponder::begin_stream;
  using net::HttpResponder::finish;
  net::asio::awaitable<Status> begin_stream(int status, net::Headers headers,
                                            std::string_view first) override {
    headers.set(kRequestId, id_);
    return to_.begin_stream(status, std::move(headers), first);
  }
  net::asio::awaitable<Status> whole_stream(int status, net::Headers headers,
                                            std::string_view bytes) override {
    headers.set(kRequestId, id_);
    return to_.whole_stream(status, std::move(headers), bytes);
  }
  net::asio::awaitable<Status> write(std::string_view bytes) override { return to_.write(bytes); }
  net::asio::awaitable<Status> finish(std::string_view last) override { return to_.finish(last); }
  void abort() override { to_.abort(); }
  void on_disconnect(std::function<void()> action) override {
    to_.on_disconnect(std::move(action));
  }
  bool client_gone() const override { return to_.client_gone(); }
  bool started() const override { return to_.started(); }

 private:
  net::HttpResponder& to_;
  std::string id_;
};

}  // namespace tandem::router
