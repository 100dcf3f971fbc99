#include "mock/reply.h"

#include <algorithm>
#include <array>

namespace tandem::mock {

namespace {

constexpr std::array<const char*, 32> kWords = {
    "amber ",        "birch ",       "cedar ",
    "delta ",        "ember ",       "fjord ",
    "grove ",        "haze ",        "iris ",
    "jade ",         "kelp ",        "lark ",
    "moss ",         "north ",       "opal ",
    "pine ",         "quay ",        "reed ",
    "slate ",        "tide ",        "umbra ",
    "vale ",         "wren ",        "yew ",
    "zinc ",         "caf\xC3\xA9 ", "\xF0\x9F\x98\x80 ",
    "\xE6\xB0\xB4 ", "\"quoted\" ",  "line\n",
    "data: ",        "[DONE] "};

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

JsonValue text_value(std::string text) { return JsonValue::string(std::move(text)); }

}  // namespace

std::string data_frame(const JsonValue& json) { return "data: " + json.dump() + "\n\n"; }

std::string event_frame(const char* event, const JsonValue& json) {
  return std::string("event: ") + event + "\ndata: " + json.dump() + "\n\n";
}

Reply::Reply(const MockOptions& options, const MockRequest& request, ReplyPlan plan)
    : options_(options), request_(request), plan_(std::move(plan)) {
  for (const PromptFacts& facts : plan_.facts) {
    for (int32_t choice = 0; choice < request_.n; ++choice) {
      const uint64_t seed = mix(facts.hash + static_cast<uint64_t>(choice) * 0x9e3779b97f4a7c15U);
      const int32_t natural = options_.reply_tokens + static_cast<int32_t>(seed % 8);
      const int32_t limit = request_.max_tokens;
      Text text;
      text.length = limit > 0 && limit < natural;
      const int32_t count = text.length ? limit : natural;
      for (int32_t i = 0; i < count; ++i)
        text.words.emplace_back(kWords[mix(seed + static_cast<uint64_t>(i)) % kWords.size()]);
      texts_.push_back(std::move(text));
    }
  }
}

size_t Reply::steps() const {
  size_t most = 0;
  for (const Text& text : texts_) most = std::max(most, text.words.size());
  return most;
}

std::string Reply::text_until(size_t choice, size_t words) const {
  std::string out;
  const auto& all = texts_[choice].words;
  for (size_t i = 0; i < std::min(words, all.size()); ++i) out += all[i];
  return out;
}

JsonValue Reply::usage() const {
  int64_t prompt = 0;
  for (const PromptFacts& facts : plan_.facts) prompt += facts.tokens;
  int64_t completion = 0;
  for (const Text& text : texts_) completion += static_cast<int64_t>(text.words.size());
  if (plan_.wrong_usage) {
    prompt = prompt * 3 + 1;
    completion = -1;
  }
  const bool theirs = request_.api == Api::kResponses || request_.api == Api::kMessages;
  JsonValue usage = JsonValue::object();
  usage.set(theirs ? "input_tokens" : "prompt_tokens", JsonValue::integer(prompt));
  usage.set(theirs ? "output_tokens" : "completion_tokens", JsonValue::integer(completion));
  if (request_.api == Api::kMessages) {
    usage.set("cache_read_input_tokens", JsonValue::integer(plan_.cached));
    return usage;
  }
  usage.set("total_tokens", JsonValue::integer(prompt + completion));
  const bool zero_is_shown =
      options_.dialect == Dialect::kTrtllm || options_.dialect == Dialect::kTandem;
  JsonValue details;
  if (options_.report_cached && (plan_.cached > 0 || zero_is_shown)) {
    details = JsonValue::object();
    details.set("cached_tokens", JsonValue::integer(plan_.cached));
  }
  usage.set(theirs ? "input_tokens_details" : "prompt_tokens_details", std::move(details));
  return usage;
}

JsonValue Reply::base(const char* object) const {
  JsonValue json = JsonValue::object();
  json.set("id", text_value(plan_.id));
  json.set("object", text_value(object));
  json.set("created", JsonValue::integer(plan_.created));
  json.set("model", text_value(options_.model));
  return json;
}

// SGLang's native form.
JsonValue Reply::meta(size_t choice, size_t words) const {
  const PromptFacts& facts = plan_.facts[choice / static_cast<size_t>(request_.n)];
  JsonValue meta = JsonValue::object();
  meta.set("id", text_value(plan_.id));
  JsonValue reason;
  if (words >= texts_[choice].words.size()) {
    reason = JsonValue::object();
    reason.set("type", text_value(finish(choice)));
  }
  meta.set("finish_reason", std::move(reason));
  meta.set("prompt_tokens", JsonValue::integer(facts.tokens));
  meta.set("completion_tokens",
           JsonValue::integer(static_cast<int64_t>(std::min(words, texts_[choice].words.size()))));
  meta.set("cached_tokens", JsonValue::integer(plan_.cached));
  if (request_.logprobs) {
    JsonValue input = JsonValue::array();
    // Only prefill computes them.
    if (options_.role != Role::kDecode) {
      for (const uint32_t token : request_.prompts[choice / static_cast<size_t>(request_.n)])
        input.push_back(
            JsonValue::array({JsonValue::real(-0.5), JsonValue::integer(token), JsonValue()}));
    }
    meta.set("input_token_logprobs", std::move(input));
    JsonValue output = JsonValue::array();
    for (size_t i = 0; i < std::min(words, texts_[choice].words.size()); ++i)
      output.push_back(JsonValue::array(
          {JsonValue::real(-0.25), JsonValue::integer(static_cast<int64_t>(i)), JsonValue()}));
    meta.set("output_token_logprobs", std::move(output));
  }
  return meta;
}

JsonValue Reply::responses_object(const char* status) const {
  JsonValue json = JsonValue::object();
  json.set("id", text_value(plan_.id));
  json.set("object", text_value("response"));
  json.set("created_at", JsonValue::integer(plan_.created));
  json.set("status", text_value(status));
  json.set("model", text_value(options_.model));
  JsonValue output = JsonValue::array();
  const bool done = std::string_view(status) == "completed";
  if (done) {
    JsonValue part = JsonValue::object();
    part.set("type", text_value("output_text"));
    part.set("text", text_value(text_until(0, steps())));
    part.set("annotations", JsonValue::array());
    JsonValue item = JsonValue::object();
    item.set("id", text_value("msg_" + plan_.id));
    item.set("type", text_value("message"));
    item.set("role", text_value("assistant"));
    item.set("status", text_value("completed"));
    item.set("content", JsonValue::array({std::move(part)}));
    output.push_back(std::move(item));
  }
  json.set("output", std::move(output));
  json.set("usage", done ? usage() : JsonValue());
  return json;
}

JsonValue Reply::whole() const {
  if (request_.api == Api::kResponses) return responses_object("completed");
  if (request_.api == Api::kMessages) {
    JsonValue json = JsonValue::object();
    json.set("id", text_value(plan_.id));
    json.set("type", text_value("message"));
    json.set("role", text_value("assistant"));
    json.set("model", text_value(options_.model));
    JsonValue block = JsonValue::object();
    block.set("type", text_value("text"));
    block.set("text", text_value(text_until(0, steps())));
    json.set("content", JsonValue::array({std::move(block)}));
    json.set("stop_reason", text_value(texts_[0].length ? "max_tokens" : "end_turn"));
    json.set("stop_sequence", JsonValue());
    json.set("usage", usage());
    return json;
  }
  if (request_.api == Api::kGenerate) {
    JsonValue all = JsonValue::array();
    for (size_t choice = 0; choice < texts_.size(); ++choice) {
      JsonValue one = JsonValue::object();
      one.set("text", text_value(text_until(choice, steps())));
      one.set("meta_info", meta(choice, steps()));
      all.push_back(std::move(one));
    }
    return texts_.size() == 1 ? all.items()[0] : all;
  }
  const bool chat = request_.api == Api::kChat;
  JsonValue json = base(chat ? "chat.completion" : "text_completion");
  JsonValue choices = JsonValue::array();
  for (size_t choice = 0; choice < texts_.size(); ++choice) {
    JsonValue one = JsonValue::object();
    one.set("index", JsonValue::integer(static_cast<int64_t>(choice)));
    if (chat) {
      JsonValue message = JsonValue::object();
      message.set("role", text_value("assistant"));
      message.set("content", text_value(text_until(choice, steps())));
      one.set("message", std::move(message));
    } else {
      one.set("text", text_value(text_until(choice, steps())));
    }
    one.set("logprobs", JsonValue());
    one.set("finish_reason", text_value(finish(choice)));
    choices.push_back(std::move(one));
  }
  json.set("choices", std::move(choices));
  json.set("usage", usage());
  return json;
}

std::string Reply::opening() const {
  if (request_.api == Api::kResponses) {
    JsonValue event = JsonValue::object();
    event.set("type", text_value("response.created"));
    event.set("response", responses_object("in_progress"));
    return event_frame("response.created", event);
  }
  if (request_.api == Api::kMessages) {
    JsonValue message = JsonValue::object();
    message.set("id", text_value(plan_.id));
    message.set("type", text_value("message"));
    message.set("role", text_value("assistant"));
    message.set("model", text_value(options_.model));
    message.set("content", JsonValue::array());
    JsonValue counted = usage();
    counted.set("output_tokens", JsonValue::integer(0));
    message.set("usage", std::move(counted));
    JsonValue start = JsonValue::object();
    start.set("type", text_value("message_start"));
    start.set("message", std::move(message));
    JsonValue block = JsonValue::object();
    block.set("type", text_value("text"));
    block.set("text", text_value(""));
    JsonValue begin = JsonValue::object();
    begin.set("type", text_value("content_block_start"));
    begin.set("index", JsonValue::integer(0));
    begin.set("content_block", std::move(block));
    return event_frame("message_start", start) + event_frame("content_block_start", begin);
  }
  if (request_.api != Api::kChat) return {};
  std::string out;
  for (size_t choice = 0; choice < texts_.size(); ++choice) {
    JsonValue delta = JsonValue::object();
    delta.set("role", text_value("assistant"));
    delta.set("content", text_value(""));
    JsonValue one = JsonValue::object();
    one.set("index", JsonValue::integer(static_cast<int64_t>(choice)));
    one.set("delta", std::move(delta));
    one.set("finish_reason", JsonValue());
    JsonValue chunk = base("chat.completion.chunk");
    chunk.set("choices", JsonValue::array({std::move(one)}));
    out += data_frame(chunk);
  }
  return out;
}

std::string Reply::step(size_t index) const {
  std::string out;
  for (size_t choice = 0; choice < texts_.size(); ++choice) {
    if (index >= texts_[choice].words.size()) continue;
    const std::string& word = texts_[choice].words[index];
    JsonValue event = JsonValue::object();
    switch (request_.api) {
      case Api::kGenerate: {
        event.set("text", text_value(text_until(choice, index + 1)));
        event.set("meta_info", meta(choice, index + 1));
        if (texts_.size() > 1) event.set("index", JsonValue::integer(static_cast<int64_t>(choice)));
        out += data_frame(event);
        break;
      }
      case Api::kResponses:
        event.set("type", text_value("response.output_text.delta"));
        event.set("delta", text_value(word));
        out += event_frame("response.output_text.delta", event);
        break;
      case Api::kMessages: {
        JsonValue delta = JsonValue::object();
        delta.set("type", text_value("text_delta"));
        delta.set("text", text_value(word));
        event.set("type", text_value("content_block_delta"));
        event.set("index", JsonValue::integer(0));
        event.set("delta", std::move(delta));
        out += event_frame("content_block_delta", event);
        break;
      }
      case Api::kChat:
      case Api::kCompletions: {
        const bool chat = request_.api == Api::kChat;
        JsonValue one = JsonValue::object();
        one.set("index", JsonValue::integer(static_cast<int64_t>(choice)));
        if (chat) {
          JsonValue delta = JsonValue::object();
          delta.set("content", text_value(word));
          one.set("delta", std::move(delta));
        } else {
          one.set("text", text_value(word));
        }
        one.set("logprobs", JsonValue());
        const bool last = index + 1 == texts_[choice].words.size();
        one.set("finish_reason", last ? text_value(finish(choice)) : JsonValue());
        event = base(chat ? "chat.completion.chunk" : "text_completion");
        event.set("choices", JsonValue::array({std::move(one)}));
        out += data_frame(event);
        break;
      }
    }
  }
  return out;
}

std::string Reply::closing() const {
  if (request_.api == Api::kResponses) {
    JsonValue event = JsonValue::object();
    event.set("type", text_value("response.completed"));
    event.set("response", responses_object("completed"));
    return event_frame("response.completed", event);
  }
  if (request_.api == Api::kMessages) {
    JsonValue stop = JsonValue::object();
    stop.set("type", text_value("content_block_stop"));
    stop.set("index", JsonValue::integer(0));
    JsonValue reason = JsonValue::object();
    reason.set("stop_reason", text_value(texts_[0].length ? "max_tokens" : "end_turn"));
    JsonValue delta = JsonValue::object();
    delta.set("type", text_value("message_delta"));
    delta.set("delta", std::move(reason));
    delta.set("usage", usage());
    JsonValue end = JsonValue::object();
    end.set("type", text_value("message_stop"));
    return event_frame("content_block_stop", stop) + event_frame("message_delta", delta) +
           event_frame("message_stop", end);
  }
  // A Tandem worker always tells its router, which drops what the client did not ask for.
  const bool tells = request_.include_usage || options_.dialect == Dialect::kTandem;
  if (request_.api == Api::kGenerate || !tells) return {};
  JsonValue chunk = base(request_.api == Api::kChat ? "chat.completion.chunk" : "text_completion");
  chunk.set("choices", JsonValue::array());
  chunk.set("usage", usage());
  if (options_.dialect == Dialect::kTandem) chunk.set("tandem", JsonValue::object());
  return data_frame(chunk);
}

}  // namespace tandem::mock
