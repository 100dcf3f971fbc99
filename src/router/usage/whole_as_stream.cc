#include "router/usage/whole_as_stream.h"

#include "base/json_value.h"
#include "base/reply_text.h"

namespace tandem::router {

namespace {

JsonValue with_choices(const JsonValue& envelope, JsonValue choices) {
  JsonValue chunk = envelope;
  chunk.set("choices", std::move(choices));
  return chunk;
}

}  // namespace

Result<std::string> whole_as_stream(Api api, std::string_view reply, bool include_usage) {
  const auto json = parse_json(reply);
  const JsonValue* const choices = json ? json->find("choices") : nullptr;
  const bool chat = api == Api::kChat;
  if ((!chat && api != Api::kCompletions) || choices == nullptr || !choices->is_array())
    return make_error(502, "bad_response", "the worker's answer cannot be streamed");
  JsonValue envelope = *json;
  envelope.erase("usage");
  if (chat) envelope.set("object", JsonValue::string("chat.completion.chunk"));
  std::string out;
  for (const JsonValue& choice : choices->items()) {
    JsonValue made = JsonValue::object();
    for (const auto& [name, value] : choice.members())
      made.set(chat && name == "message" ? "delta" : name, value);
    out += sse_frame(with_choices(envelope, JsonValue::array({std::move(made)})).dump());
  }
  if (const JsonValue* const usage = json->find("usage"); include_usage && usage != nullptr) {
    JsonValue last = with_choices(envelope, JsonValue::array());
    last.set("usage", *usage);
    out += sse_frame(last.dump());
  }
  return out += sse_frame("[DONE]");
}

}  // namespace tandem::router
