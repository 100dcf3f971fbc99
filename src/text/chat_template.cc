#include "text/chat_template.h"

#include <algorithm>
#include <utility>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"
#include "text/unicode.h"

namespace tandem::text {

struct ChatTemplate::State {
  std::vector<jinja::NodePtr> body;
  std::vector<jinja::NodePtr> with_tools;
  bool has_with_tools = false;
  bool knows_developer = false;
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
  state->knows_developer = source.find("developer") != std::string_view::npos;
  return ChatTemplate(std::move(state));
}

bool ChatTemplate::knows_developer() const { return state_->knows_developer; }

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

// Puts a sentinel into every spelling of a control token in a string, and where the string's end or
// begin could complete one together with neighbouring text. Case is ignored: templates may change
// it.
class Breaker {
 public:
  explicit Breaker(const Tokenizer& tokenizer) {
    for (const int32_t id : tokenizer.special_tokens()) {
      if (!tokenizer.is_control(id)) continue;
      std::string spelling(tokenizer.token_bytes(id));
      lower_ascii(spelling);
      if (spelling.size() >= 2) spellings_.push_back(std::move(spelling));
    }
    for (const std::string& spelling : spellings_) {
      first_[static_cast<uint8_t>(spelling.front())] = true;
    }
  }

  // Chooses a sentinel that `value` does not hold; false when the value holds all of them.
  bool choose(const JsonValue& value) {
    bool used[32] = {};
    note_used(value, used);
    const auto* const free = std::find(std::begin(used), std::end(used), false);
    if (free == std::end(used)) return false;
    sentinel_.clear();
    append_utf8(sentinel_, 0xFDD0 + static_cast<uint32_t>(free - std::begin(used)));
    return true;
  }
  const std::string& sentinel() const { return sentinel_; }

  void apply(JsonValue& value) const {
    switch (value.kind()) {
      case JsonValue::Kind::kString: {
        std::string broken = value.as_string();
        if (apply(broken)) value = JsonValue::string(std::move(broken));
        break;
      }
      case JsonValue::Kind::kArray:
        for (JsonValue& item : value.items()) apply(item);
        break;
      case JsonValue::Kind::kObject:
        for (auto& [key, item] : value.members()) {
          apply(key);
          apply(item);
        }
        break;
      default:
        break;
    }
  }

 private:
  static void lower_ascii(std::string& text) {
    for (char& c : text) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    }
  }

  static void note_used(std::string_view text, bool (&used)[32]) {
    // U+FDD0..U+FDEF are EF B7 90 .. EF B7 AF.
    for (size_t i = text.find("\xEF\xB7"); i != std::string_view::npos;
         i = text.find("\xEF\xB7", i + 2)) {
      if (i + 2 >= text.size()) break;
      const auto third = static_cast<uint8_t>(text[i + 2]);
      if (third >= 0x90 && third <= 0xAF) used[third - 0x90] = true;
    }
  }
  static void note_used(const JsonValue& value, bool (&used)[32]) {
    if (value.is_string()) note_used(std::string_view(value.as_string()), used);
    for (const JsonValue& item : value.items()) note_used(item, used);
    for (const auto& [key, item] : value.members()) {
      note_used(std::string_view(key), used);
      note_used(item, used);
    }
  }

  bool apply(std::string& text) const {
    if (text.empty()) return false;
    std::string lowered = text;
    lower_ascii(lowered);
    const std::string_view view = lowered;
    std::vector<size_t> cuts;  // a sentinel goes before each of these
    if (completes_at_begin(view)) cuts.push_back(0);
    for (size_t i = 0; i < view.size(); ++i) {
      if (!first_[static_cast<uint8_t>(view[i])]) continue;
      const std::string_view rest = view.substr(i);
      const bool breaks =
          std::any_of(spellings_.begin(), spellings_.end(), [&](const std::string& s) {
            return rest.starts_with(s) || std::string_view(s).starts_with(rest);
          });
      if (breaks) cuts.push_back(i + 1);
    }
    if (cuts.empty()) return false;
    std::string broken;
    size_t from = 0;
    for (const size_t cut : cuts) {
      broken.append(text, from, cut - from).append(sentinel_);
      from = cut;
    }
    broken.append(text, from);
    text = std::move(broken);
    return true;
  }

  // The string begins with the end of a spelling (or lies wholly inside one).
  bool completes_at_begin(std::string_view text) const {
    return std::any_of(spellings_.begin(), spellings_.end(), [&](const std::string& spelling) {
      for (size_t size = 1; size < spelling.size(); ++size) {
        const std::string_view tail = std::string_view(spelling).substr(size);
        // A single letter would put sentinels into ordinary words; what precedes it must be ours to
        // match.
        if (tail.size() > 1 && text.starts_with(tail)) return true;
      }
      return false;
    });
  }

  std::vector<std::string> spellings_;
  bool first_[256] = {};
  std::string sentinel_;
};

std::string without(std::string_view text, std::string_view sentinel) {
  std::string out;
  for (size_t from = 0; from < text.size();) {
    const size_t at = std::min(text.find(sentinel, from), text.size());
    out.append(text.substr(from, at - from));
    from = at + sentinel.size();
  }
  return out;
}

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
  Breaker breaker(tokenizer);
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
    error.message = without(error.message, breaker.sentinel());
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
  return without(rendered.text, rendered.sentinel);
}

}  // namespace tandem::text
