// Chat templates: messages to the text, and the tokens, that a model expects. Immutable and
// thread-safe.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace tandem::text {

struct TemplateOptions {
  std::optional<std::time_t> now;  // for strftime_now; the system's clock unless set
  std::string_view sentinel = {};  // see encode_chat
};

class ChatTemplate {
 public:
  // `with_tools`: a second template for requests with tools; empty: `source` serves them too.
  // Errors: 400 "invalid_chat_template" with the line.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view with_tools = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Renders with the members of `context` (an object) as variables; when its "tools" is a list that
  // is not empty, the template for tools. Errors: 400
  // "chat_template_error"; a template's raise_exception(message) gives exactly its message. Bounded
  // in time, depth and size.
  Result<std::string> render(const JsonValue& context, const TemplateOptions& options = {}) const;

  // Whether the template knows the role "developer"; when it does not, encode_chat says "system"
  // instead.
  bool knows_developer() const;
  // The text of both templates.
  std::string_view source() const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A chat request as the model's tokens: renders the template, matches its special tokens, encodes.
// Strings from `messages`, `tools` and `extra` can never become control tokens, nor user-defined
// ones that the template spells, whatever they spell: each such spelling is broken by a
// noncharacter (U+FDD0 to U+FDEF, one the input does not use) that the tokenizer drops after it has
// split the text on special tokens. `tools` may be null. `extra` adds
// variables (an object, or null).
Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer,
                                         const ChatTemplate& chat_template, JsonValue messages,
                                         JsonValue tools, bool add_generation_prompt,
                                         const JsonValue& extra = {});

// The text that encode_chat tokenizes, without sentinels: for tools and tests.
Result<std::string> render_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                JsonValue messages, JsonValue tools, bool add_generation_prompt,
                                const JsonValue& extra = {});

}  // namespace tandem::text
