#include "text/chat_template.h"

#include <algorithm>
#include <utility>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"
#include "text/jinja/strings.h"
#include "text/marker_breaker.h"

namespace tandem::text {

struct ChatTemplate::State {
  std::vector<jinja::NodePtr> body;
  std::vector<jinja::NodePtr> with_tools;
  bool has_with_tools = false;
  bool knows_developer = false;
  std::string source;  // of both
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view with_tools) {
  constexpr size_t kMaxSource = 1 << 20;
  if (source.size() > kMaxSource || with_tools.size() > kMaxSource) {
    return make_error(400, "invalid_chat_template", "the chat template is larger than 1 MiB");
  }
  TANDEM_TRY(body, jinja::parse(source));
  TANDEM_TRY(tool_body, jinja::parse(with_tools));
  auto state = std::make_unique<State>();
  state->body = std::move(body);
  state->with_tools = std::move(tool_body);
  state->has_with_tools = !with_tools.empty();
  state->source.append(source).append(with_tools);
  state->knows_developer = source.find("developer") != std::string_view::npos;
  return ChatTemplate(std::move(state));
}

bool ChatTemplate::knows_developer() const { return state_->knows_developer; }
std::string_view ChatTemplate::source() const { return state_->source; }

Result<std::string> ChatTemplate::render(const JsonValue& context,
                                         const TemplateOptions& options) const {
  jinja::Variables variables;
  for (const auto& [key, value] : context.members())
    variables.emplace_back(key, jinja::from_json(value));
  jinja::RenderOptions render_options;
  render_options.now = options.now;
  render_options.sentinel = options.sentinel;
  const JsonValue* tools = context.find("tools");
  const bool tool_body = state_->has_with_tools && tools != nullptr && !tools->items().empty();
  return jinja::render(tool_body ? state_->with_tools : state_->body, variables, render_options);
}

namespace {

void map_developer(JsonValue& messages) {
  for (JsonValue& message : messages.items()) {
    JsonValue* role = message.find("role");
    if (role && role->is_string() && role->as_string() == "developer") {
      *role = JsonValue::string("system");
    }
  }
}

void set_token(JsonValue& context, const char* name, const Tokenizer& tokenizer, int32_t token) {
  if (token >= 0) context.set(name, JsonValue::string(std::string(tokenizer.token_bytes(token))));
}

struct Rendered {
  std::string text;
  std::string sentinel;
};

Result<Rendered> render_broken(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                               JsonValue messages, JsonValue tools, bool add_generation_prompt,
                               const JsonValue& extra) {
  if (!chat_template.knows_developer()) map_developer(messages);
  JsonValue user = JsonValue::object();
  for (const auto& [key, value] : extra.members()) user.set(key, value);
  user.set("messages", std::move(messages));
  user.set("tools", std::move(tools));
  MarkerBreaker breaker(tokenizer, chat_template.source());
  if (!breaker.choose(user)) {
    return invalid_request("the messages use every noncharacter from U+FDD0 to U+FDEF",
                           "/messages");
  }
  breaker.apply(user);

  user.set("documents", JsonValue());
  user.set("add_generation_prompt", JsonValue::boolean(add_generation_prompt));
  const TokenizerSpec& spec = tokenizer.spec();
  set_token(user, "bos_token", tokenizer, spec.bos);
  set_token(user, "eos_token", tokenizer, spec.eos);
  set_token(user, "unk_token", tokenizer, spec.unknown);
  set_token(user, "pad_token", tokenizer, spec.pad);
  TemplateOptions options;
  options.sentinel = breaker.sentinel();
  Result<std::string> text = chat_template.render(user, options);
  if (!text) {
    Error error = std::move(text).error();
    error.message = jinja::without(error.message, breaker.sentinel());
    if (!error.pointer) error.pointer = "/messages";
    return tl::unexpected(std::move(error));
  }
  return Rendered{std::move(*text), breaker.sentinel()};
}

}  // namespace

Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer,
                                         const ChatTemplate& chat_template, JsonValue messages,
                                         JsonValue tools, bool add_generation_prompt,
                                         const JsonValue& extra) {
  TANDEM_TRY(rendered, render_broken(tokenizer, chat_template, std::move(messages),
                                     std::move(tools), add_generation_prompt, extra));
  EncodeOptions options;
  options.parse_special = true;
  options.sentinel = rendered.sentinel;
  // A template that writes its own begin-of-sequence token must not get a second one.
  const TokenizerSpec& spec = tokenizer.spec();
  const std::string_view bos = tokenizer.token_bytes(spec.bos);
  options.add_bos = bos.empty() || !std::string_view(rendered.text).starts_with(bos);
  return tokenizer.encode(rendered.text, options);
}

Result<std::string> render_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                JsonValue messages, JsonValue tools, bool add_generation_prompt,
                                const JsonValue& extra) {
  TANDEM_TRY(rendered, render_broken(tokenizer, chat_template, std::move(messages),
                                     std::move(tools), add_generation_prompt, extra));
  return jinja::without(rendered.text, rendered.sentinel);
}

}  // namespace tandem::text
