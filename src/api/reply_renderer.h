// ReplyRenderer: one request's events as the reply bytes of its dialect, streamed or whole. Pure;
// one thread at a time. Streaming: send begin(), then render(p, event) for each event. Whole:
// collect(p, event) for each, then body().
#pragma once

#include <memory>
#include <string>

#include "api/openai.h"
#include "protocol/token_event.h"

namespace tandem::api {

struct ReplyContext;

class ReplyRenderer {
 public:
  ReplyRenderer() = default;
  ReplyRenderer(const ReplyRenderer&) = delete;
  ReplyRenderer& operator=(const ReplyRenderer&) = delete;
  virtual ~ReplyRenderer() = default;

  virtual std::string begin() = 0;
  // Zero or more whole SSE frames; with the event that ends the request also what ends the stream.
  virtual std::string render(size_t prompt, const protocol::TokenEvent& event) = 0;
  // True once every choice has finished, or an error came; later events are ignored.
  virtual bool finished() const = 0;
  virtual bool failed() const = 0;
  virtual void collect(size_t prompt, const protocol::TokenEvent& event) = 0;
  // The JSON object, or the request's error (also when a finish is missing).
  virtual Result<std::string> body() const = 0;
};

// By the request's endpoint.
std::unique_ptr<ReplyRenderer> make_renderer(const ApiRequest& request, ReplyContext context);

}  // namespace tandem::api
