#include "api/field_readers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "api/custom_tools.h"
#include "api/fields.h"
#include "api/messages.h"
#include "api/request_tables.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 4096;

tl::unexpected<Error> refuse(const char* code, std::string sentence, const std::string& pointer) {
  return make_error(400, code, std::move(sentence), pointer);
}

Status add_stop(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_string())
    return refuse("invalid_type", "a stop sequence must be a string", pointer);
  if (value.as_string().size() > kMaxStopBytes)
    return refuse("string_above_max_length", "a stop sequence has at most 4096 bytes", pointer);
  if (!value.as_string().empty()) draft.request.sampling.stop.push_back(value.as_string());
  return {};
}

Status add_prompt(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (value.is_string()) {
    if (value.as_string().size() > kMaxPromptBytes)
      return refuse("string_above_max_length", "the prompt is too large", pointer);
    if (value.as_string().empty() && draft.request.endpoint == Endpoint::kEmbeddings)
      return refuse("empty_string", "there is nothing to embed in an empty text", pointer);
    draft.request.prompts.push_back({value.as_string(), std::nullopt});
    return {};
  }
  if (!value.is_array()) {
    return refuse("invalid_type",
                  "a prompt must be a string or an array of token ids (or an array of prompts)",
                  pointer);
  }
  if (value.items().empty()) return refuse("empty_array", "a prompt has no token ids", pointer);
  TANDEM_TRY(tokens, read_tokens(value, pointer, kMaxPromptTokens));
  draft.request.prompts.push_back({"", std::move(tokens)});
  return {};
}

}  // namespace

Status read_logit_bias(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_object())
    return refuse("invalid_type", "'logit_bias' must be an object of token ids and numbers",
                  pointer);
  if (value.members().size() > protocol::kMaxLogitBias) {
    return refuse(
        "object_above_max_properties",
        "'logit_bias' has more than " + std::to_string(protocol::kMaxLogitBias) + " entries",
        pointer);
  }
  TANDEM_CHECK(check_keys(value, pointer));
  auto& out = draft.request.sampling.logit_bias;
  for (const auto& [key, bias] : value.members()) {
    const std::string at = pointer_to(pointer, key.substr(0, 32));
    int32_t token = 0;
    const auto [end, failed] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (failed != std::errc() || end != key.data() + key.size() || token < 0)
      return refuse("invalid_value", "a key of 'logit_bias' must be a token id", at);
    const auto number = bias.is_number() ? bias.as_double() : std::nullopt;
    if (!number || !(std::abs(*number) <= 100))
      return refuse("invalid_value", "a logit bias must be a number from -100 to 100", at);
    out.push_back({token, static_cast<float>(*number)});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  // "07" and "7" are one token.
  const auto twice = std::adjacent_find(
      out.begin(), out.end(), [](const auto& a, const auto& b) { return a.token == b.token; });
  if (twice == out.end()) return {};
  return refuse("duplicate_parameter", "'logit_bias' names a token twice",
                pointer_to(pointer, std::to_string(twice->token)));
}

Status read_stops(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (value.is_string()) return add_stop(value, pointer, draft);
  if (!value.is_array())
    return refuse("invalid_type", "'stop' must be a string or an array of strings", pointer);
  if (value.items().size() > kMaxStops)
    return refuse("array_above_max_length", "'stop' has more than 16 strings", pointer);
  for (size_t i = 0; i < value.items().size(); ++i)
    TANDEM_CHECK(add_stop(value.items()[i], pointer_to(pointer, i), draft));
  return {};
}

Status read_stop_tokens(const JsonValue& value, const std::string& pointer, Draft& draft) {
  TANDEM_TRY(tokens, read_tokens(value, pointer, protocol::kMaxStopTokens));
  draft.request.sampling.stop_token_ids = std::move(tokens);
  return {};
}

namespace {

Status put_format(AnswerFormat format, Draft& draft) {
  if (draft.request.format.kind != AnswerFormat::Kind::kText)
    return refuse("invalid_value", "an answer has one format: this is the second", format.pointer);
  draft.request.format = std::move(format);
  return {};
}

// `schema` may be null where there is none.
Status set_format(const std::string& type, const JsonValue* holder, const std::string& at,
                  const std::string& pointer, Draft& draft) {
  if (type == "text") return {};
  if (type == "json_object")
    return put_format({.kind = AnswerFormat::Kind::kJsonObject, .pointer = pointer}, draft);
  if (type != "json_schema")
    return refuse("invalid_value", "'type' must be text, json_object or json_schema",
                  pointer + "/type");
  const JsonValue* schema = holder == nullptr ? nullptr : holder->find("schema");
  if (schema == nullptr || !(schema->is_object() || schema->is_bool()))
    return refuse("invalid_type", "'schema' must be a JSON schema", at + "/schema");
  const JsonValue* strict = holder->find("strict");
  return put_format({.kind = AnswerFormat::Kind::kJsonSchema,
                     .schema = *schema,
                     .strict = strict != nullptr && strict->as_bool(),
                     .pointer = at + "/schema"},
                    draft);
}

}  // namespace

Status read_response_format(const JsonValue& value, const std::string& pointer, Draft& draft) {
  const JsonValue* type = value.find("type");
  if (type == nullptr || !type->is_string())
    return refuse("invalid_type", "'response_format' must be an object with a type", pointer);
  return set_format(type->as_string(), value.find("json_schema"), pointer + "/json_schema", pointer,
                    draft);
}

Status read_text_format(const JsonValue& value, const std::string& pointer, Draft& draft) {
  const JsonValue* type = value.find("type");
  if (type == nullptr || !type->is_string())
    return refuse("invalid_type", "a format must be an object with a type", pointer);
  return set_format(type->as_string(), &value, pointer, pointer, draft);
}

namespace {

Status put_text(AnswerFormat::Kind kind, const JsonValue& value, const std::string& pointer,
                Draft& draft) {
  if (!value.is_string()) return refuse("invalid_type", "this must be a string", pointer);
  if (value.as_string().empty()) return {};
  return put_format({.kind = kind, .pointer = pointer, .definition = value.as_string()}, draft);
}

}  // namespace

Status read_format_schema(const JsonValue& value, const std::string& pointer, Draft& draft) {
  JsonValue schema = value;
  if (value.is_string() && value.as_string().empty()) return {};
  if (value.is_string()) {
    auto parsed = parse_json(value.as_string());
    if (!parsed) return refuse("invalid_value", "this must be a JSON schema", pointer);
    schema = std::move(*parsed);
  }
  if (!schema.is_object()) return refuse("invalid_type", "this must be a JSON schema", pointer);
  return put_format(
      {.kind = AnswerFormat::Kind::kJsonSchema, .schema = std::move(schema), .pointer = pointer},
      draft);
}

Status read_format_regex(const JsonValue& value, const std::string& pointer, Draft& draft) {
  return put_text(AnswerFormat::Kind::kRegex, value, pointer, draft);
}

Status read_format_choice(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_array()) return refuse("invalid_type", "this must be an array of strings", pointer);
  if (value.items().empty()) return {};
  for (size_t i = 0; i < value.items().size(); ++i) {
    if (!value.items()[i].is_string() || value.items()[i].as_string().empty())
      return refuse("invalid_type", "a choice must be a string that is not empty",
                    pointer_to(pointer, i));
  }
  return put_format({.kind = AnswerFormat::Kind::kChoice, .schema = value, .pointer = pointer},
                    draft);
}

// GBNF and EBNF define their rules with ::=, Lark with a colon.
Status read_format_grammar(const JsonValue& value, const std::string& pointer, Draft& draft) {
  const bool gbnf = value.as_string().find("::=") != std::string::npos;
  return put_text(gbnf ? AnswerFormat::Kind::kGbnf : AnswerFormat::Kind::kLark, value, pointer,
                  draft);
}

Status read_structured_outputs(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_object())
    return refuse("invalid_type", "'structured_outputs' must be an object", pointer);
  constexpr std::pair<const char*, Status (*)(const JsonValue&, const std::string&, Draft&)>
      kReaders[] = {{"json", read_format_schema},
                    {"regex", read_format_regex},
                    {"choice", read_format_choice},
                    {"grammar", read_format_grammar}};
  const JsonValue* object = value.find("json_object");
  bool known = value.members().empty() || object != nullptr;
  for (const auto& [key, read] : kReaders) {
    const JsonValue* given = value.find(key);
    known = known || given != nullptr;
    if (given != nullptr && !given->is_null())
      TANDEM_CHECK(read(*given, pointer + "/" + key, draft));
  }
  if (object != nullptr && !object->is_bool() && !object->is_null())
    return refuse("invalid_type", "'json_object' must be a boolean", pointer + "/json_object");
  if (object != nullptr && object->as_bool())
    TANDEM_CHECK(put_format(
        {.kind = AnswerFormat::Kind::kJsonObject, .pointer = pointer + "/json_object"}, draft));
  const JsonValue* tags = value.find("structural_tag");
  if (tags != nullptr && !tags->is_null())
    return refuse("unsupported_parameter", "use tools, or a grammar", pointer + "/structural_tag");
  if (known) return {};
  return refuse("invalid_value",
                "'structured_outputs' must have json, regex, choice, grammar or json_object",
                pointer);
}

Status read_tools(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_array()) return refuse("invalid_type", "'tools' must be an array", pointer);
  if (value.items().size() > kMaxTools)
    return refuse("array_above_max_length", "there are more than 4096 tools", pointer);
  for (size_t i = 0; i < value.items().size(); ++i) {
    const JsonValue& tool = value.items()[i];
    const std::string at = pointer_to(pointer, i);
    if (!tool.is_object()) return refuse("invalid_type", "a tool must be an object", at);
    if (draft.request.tools.is_null()) draft.request.tools = JsonValue::array();
    const JsonValue* custom = tool.find("custom");
    if (custom != nullptr && custom->is_object()) {
      TANDEM_CHECK(add_custom_tool(*custom, "", at + "/custom", draft));
      continue;
    }
    draft.request.tools.push_back(tool);
    draft.request.tool_pointers.push_back(at + "/function/parameters");
  }
  return {};
}

bool read_choice_word(const JsonValue& value, Draft& draft) {
  if (!value.is_string()) return false;
  const std::string& word = value.as_string();
  draft.tools_off = word == "none";
  if (word == "required") draft.request.choice = ToolChoice::kRequired;
  return word == "none" || word == "auto" || word == "required";
}

Status read_allowed_tools(
    const JsonValue& value, const std::string& pointer,
    const std::function<std::optional<std::string>(const JsonValue&)>& name_of, Draft& draft) {
  const JsonValue* mode = value.find("mode");
  const std::string word = mode == nullptr ? "" : mode->as_string();
  if (word != "auto" && word != "required")
    return refuse("invalid_value", "'mode' must be auto or required", pointer + "/mode");
  const bool required = word == "required";
  const JsonValue* tools = value.find("tools");
  if (tools == nullptr || !tools->is_array())
    return refuse("invalid_type", "'tools' must be an array", pointer + "/tools");
  if (tools->items().size() > kMaxTools)
    return refuse("array_above_max_length", "there are more than 4096 tools", pointer + "/tools");
  std::vector<std::string> names;
  for (size_t i = 0; i < tools->items().size(); ++i) {
    auto name = name_of(tools->items()[i]);
    if (!name) continue;
    if (name->empty()) {
      return refuse("invalid_value", "an allowed tool must have a name",
                    pointer_to(pointer + "/tools", i));
    }
    names.push_back(std::move(*name));
  }
  if (names.empty() && required)
    return refuse("invalid_value", "'tool_choice' asks for a call, but allows no tool",
                  pointer + "/tools");
  if (required) draft.request.choice = ToolChoice::kRequired;
  draft.tools_off = names.empty();
  if (!names.empty()) draft.request.allowed_tools = std::move(names);
  return {};
}

Status read_tool_choice(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (read_choice_word(value, draft)) return {};
  ApiRequest& request = draft.request;
  const auto name_of = [](const JsonValue& of) -> const JsonValue* {
    const JsonValue* function = of.find("function");
    if (function == nullptr) function = of.find("custom");
    return function == nullptr ? nullptr : function->find("name");
  };
  if (const JsonValue* allowed = value.find("allowed_tools")) {
    const auto allowed_name = [&](const JsonValue& of) -> std::optional<std::string> {
      const JsonValue* name = name_of(of);
      return name != nullptr && name->is_string() ? name->as_string() : std::string();
    };
    return read_allowed_tools(*allowed, pointer + "/allowed_tools", allowed_name, draft);
  }
  const JsonValue* name = name_of(value);
  if (name == nullptr || !name->is_string())
    return refuse("invalid_value", "'tool_choice' must be auto, none, required or a function",
                  pointer);
  request.choice = ToolChoice::kNamed;
  request.chosen_tool = name->as_string();
  return {};
}

Status read_template_arguments(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_object())
    return refuse("invalid_type", "'chat_template_kwargs' must be an object", pointer);
  draft.request.template_arguments = value;
  return {};
}

Status read_messages(const JsonValue& value, const std::string& pointer, Draft& draft) {
  TANDEM_TRY(messages, normalize_messages(value, pointer));
  draft.request.messages = std::move(messages);
  return {};
}

Status read_prompts(const JsonValue& value, const std::string& pointer, Draft& draft) {
  const bool list = value.is_array() && !value.items().empty() && !value.items()[0].is_number();
  if (!list) return add_prompt(value, pointer, draft);
  if (value.items().size() > static_cast<size_t>(kMaxPrompts))
    return refuse("array_above_max_length", "there are more than 2048 prompts", pointer);
  for (size_t i = 0; i < value.items().size(); ++i)
    TANDEM_CHECK(add_prompt(value.items()[i], pointer_to(pointer, i), draft));
  return {};
}

Status read_prompt_text(const JsonValue& value, const std::string& pointer, Draft& draft) {
  if (!value.is_string()) return refuse("invalid_type", "'prompt' must be a string", pointer);
  return add_prompt(value, pointer, draft);
}

Status read_token_prompt(const JsonValue& value, const std::string& pointer, Draft& draft) {
  TANDEM_TRY(tokens, read_tokens(value, pointer, kMaxPromptTokens));
  draft.request.prompts.push_back({"", std::move(tokens)});
  return {};
}

}  // namespace tandem::api
