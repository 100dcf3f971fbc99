// What the replies of the dialects that agents speak (Messages, Responses) have in common: one
// choice, an event stream that says everything, and a whole answer that is what the stream said,
// put together.
#pragma once

#include <optional>
#include <string>

#include "api/reply_reader.h"
#include "api/reply_renderer.h"
#include "api/responses.h"

namespace tandem::api {

class AgentReply : public ReplyRenderer {
 public:
  std::string render(size_t prompt, const protocol::TokenEvent& event) final;
  void collect(size_t prompt, const protocol::TokenEvent& event) final;
  bool finished() const final { return finish_.has_value() || error_.has_value(); }
  bool failed() const final { return error_.has_value(); }
  Result<std::string> body() const final;

 protected:
  AgentReply(const ApiRequest& request, ReplyContext context);

  // Frames: of one part of the reply; of what closes the open block; of the end (finish_ is set);
  // of a failure (error_ is set).
  virtual std::string take(const ReplyEvent& part) = 0;
  virtual std::string close(const protocol::FinishEvent& end) = 0;
  virtual std::string last() = 0;
  virtual std::string fail() = 0;
  virtual JsonValue whole() const = 0;  // finish_ is set

  // What a router asks to be told; nothing else gets it. finish_ is set.
  void add_report(JsonValue& json) const;

  const ApiRequest request_;
  const ReplyContext context_;
  ReplyReader reader_;
  std::optional<protocol::FinishEvent> finish_;
  std::optional<Error> error_;

 private:
  std::string end_with(Error error);
};

}  // namespace tandem::api
