#include "router/connectors/leg_body.h"

#include <algorithm>

#include "base/json_splice.h"

namespace tandem::router {

namespace {

using Action = BodyEdit::Action;
using Kind = JsonValue::Kind;

constexpr unsigned kChatLike = api_bit(Api::kChat) | api_bit(Api::kCompletions);
constexpr BodyEdit kAskUsage{Action::kSet, "stream_options.include_usage", "true", kChatLike};

// Of a template's name, from its first byte.
size_t name_length(std::string_view text) {
  const auto end =
      std::ranges::find_if_not(text, [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; });
  return static_cast<size_t>(end - text.begin());
}

std::string quoted(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 2);
  append_json_string(out, text);
  return out;
}

std::string authority(const std::string& host, uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

// The value of a name as JSON text.
class Names {
 public:
  Names(const LegValues& values, const Harvest* harvest) : values_(values), harvest_(harvest) {}

  std::optional<std::string> json(std::string_view name) const {
    if (name == "TANDEM") return given(values_.tandem);
    if (name == "ROOM") return rooms();
    if (name == "BOOTSTRAP_HOST") return for_each_room(string(values_.bootstrap_host));
    if (name == "BOOTSTRAP_PORT")
      return for_each_room(values_.bootstrap_port ? std::to_string(*values_.bootstrap_port)
                                                  : std::string("null"));
    if (name == "BOOTSTRAP_URL") {
      if (values_.bootstrap_host.empty() || !values_.bootstrap_port) return std::nullopt;
      return quoted("http://" + authority(values_.bootstrap_host, *values_.bootstrap_port));
    }
    if (name == "DP_RANK") return number(values_.dp_rank);
    if (name == "PREFILL_DP_RANK") return number(values_.prefill_dp_rank);
    if (name == "GLOBAL_ID") return number(values_.global_id);
    if (name == "REQUEST_ID") return string(values_.request_id);
    if (name == "RID") return string(values_.rid);
    if (name == "TRANSFER_ID") return string(values_.transfer_id);
    if (name == "CONTEXT_ENDPOINT") return string(values_.context_endpoint);
    if (name == "CONTEXT_DP_RANK")
      return std::string(values_.context_dp_rank ? std::to_string(*values_.context_dp_rank)
                                                 : "null");
    if (name == "ENGINE_ID") return string(values_.identity.engine_id);
    if (name == "SIDE_HOST") return string(values_.identity.host);
    if (name == "SIDE_PORT") return given(values_.identity.port);
    if (name == "TP_SIZE") return given(values_.identity.tp_size);
    if (name.starts_with("DECODE_")) return side(values_.decode_side, name.substr(7));
    if (name.starts_with("PREFILL_") && name != "PREFILL_USAGE")
      return side(values_.prefill_side, name.substr(8));
    if (harvest_ == nullptr) return std::nullopt;
    if (name == "HARVESTED") return given(harvest_->params);
    if (name == "HARVESTED_MEMBERS") return members(harvest_->params);
    if (name == "PROMPT_TOKEN_IDS") return given(harvest_->prompt_token_ids);
    if (name == "PREFILL_USAGE") return given(harvest_->usage);
    return std::nullopt;
  }

  // The template with its names filled in; nothing when one is missing.
  std::optional<std::string> fill(std::string_view text) const {
    if (!text.empty() && text[0] == '$' && name_length(text.substr(1)) + 1 == text.size())
      return json(text.substr(1));
    std::string out;
    while (true) {
      const size_t mark = text.find('$');
      out += text.substr(0, mark);
      if (mark == std::string_view::npos) return out;
      text.remove_prefix(mark + 1);
      const size_t length = name_length(text);
      const auto value = json(text.substr(0, length));
      if (!value) return std::nullopt;
      out += *value;
      text.remove_prefix(length);
    }
  }

 private:
  static std::optional<std::string> side(const std::optional<SideAddress>& address,
                                         std::string_view name) {
    if (!address) return std::nullopt;
    if (name == "HOST") return string(address->host);
    if (name == "HANDSHAKE_PORT") return std::to_string(address->handshake_port);
    if (name == "NOTIFY_PORT") return std::to_string(address->notify_port);
    if (name == "TP_SIZE") return std::to_string(address->tp_size);
    if (name == "DP_SIZE") return std::to_string(address->dp_size);
    if (name == "SIDE_RANK") return std::to_string(address->dp_rank);
    return std::nullopt;
  }
  // Of an object's text, what is between its braces; nothing when there is nothing.
  static std::optional<std::string> members(const std::string& object) {
    const size_t begin = object.find('{');
    const size_t end = object.rfind('}');
    if (begin == std::string::npos || end == std::string::npos || end <= begin) return std::nullopt;
    std::string text = object.substr(begin + 1, end - begin - 1);
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return std::nullopt;
    return text;
  }
  static std::optional<std::string> given(const std::string& text) {
    return text.empty() ? std::nullopt : std::optional(text);
  }
  static std::optional<std::string> string(const std::string& text) {
    return text.empty() ? std::nullopt : std::optional<std::string>(quoted(text));
  }
  template <typename Number>
  static std::optional<std::string> number(const std::optional<Number>& value) {
    return value ? std::optional<std::string>(std::to_string(*value)) : std::nullopt;
  }

  std::optional<std::string> rooms() const {
    if (values_.rooms.empty()) return std::nullopt;
    if (values_.rooms.size() == 1) return std::to_string(values_.rooms[0]);
    std::string list;
    for (const int64_t room : values_.rooms)
      list += (list.empty() ? "[" : ",") + std::to_string(room);
    return list + "]";
  }

  // A batch has arrays of one length.
  std::optional<std::string> for_each_room(std::optional<std::string> value) const {
    if (!value || values_.rooms.size() <= 1) return value;
    std::string list = "[";
    for (size_t i = 0; i < values_.rooms.size(); ++i) list += (i == 0 ? "" : ",") + *value;
    return list + "]";
  }

  const LegValues& values_;
  const Harvest* harvest_;
};

// Collects the edits of one body.
class LegEditor {
 public:
  LegEditor(std::string_view body, const BodyFacts& facts, const Names& names)
      : body_(body), facts_(facts), names_(names), top_(facts.scan) {}

  void erase(std::span<const std::string_view> members) {
    for (const std::string_view name : members) top_.erase(name);
  }

  Status apply(std::span<const BodyEdit> edits) {
    for (const BodyEdit& edit : edits) {
      if ((edit.apis & api_bit(facts_.api)) == 0) continue;
      std::optional<std::string> value;
      if (edit.action != Action::kErase) {
        value = names_.fill(edit.value);
        if (!value && edit.needed) return missing(edit);
        if (!value) continue;
      }
      const size_t dot = edit.path.find('.');
      if (dot == std::string_view::npos) {
        change(top_, facts_.scan, edit, edit.path, std::move(value));
      } else {
        nested_.push_back(
            {edit.path.substr(0, dot), edit.path.substr(dot + 1), &edit, std::move(value)});
      }
    }
    return {};
  }

  std::vector<TextEdit> edits() {
    while (!nested_.empty()) {
      const std::string_view parent = nested_.front().parent;
      edit_parent(parent);
      std::erase_if(nested_, [&](const Nested& nested) { return nested.parent == parent; });
    }
    return top_.edits();
  }

 private:
  struct Nested {
    std::string_view parent;
    std::string_view name;
    const BodyEdit* edit;
    std::optional<std::string> value;
  };

  static tl::unexpected<Error> missing(const BodyEdit& edit) {
    if (edit.value.find("$HARVESTED") != std::string_view::npos) {
      return make_error(502, "bad_response",
                        "the prefill worker's answer lacks what the decode worker needs");
    }
    return internal_error("a value of the handoff's " + std::string(edit.path) + " is missing");
  }

  static void change(JsonEdit& into, const JsonScan& scan, const BodyEdit& edit,
                     std::string_view name, std::optional<std::string> value) {
    const JsonMemberSpan* const member = scan.find(name);
    const bool present = member != nullptr && member->kind != Kind::kNull;
    switch (edit.action) {
      case Action::kErase:
        return into.erase(name);
      case Action::kSetIfPresent:
        if (!present) return;
        break;
      case Action::kSetIfAbsent:
        if (present) return;
        break;
      case Action::kSet:
        break;
    }
    into.set(name, std::move(*value));
  }

  void edit_parent(std::string_view parent) {
    const JsonMemberSpan* const member = facts_.scan.find(parent);
    const bool absent = member == nullptr || member->kind == Kind::kNull;
    if (!absent && member->kind != Kind::kObject) return;
    const std::string_view text = absent ? std::string_view("{}") : json_value_of(body_, *member);
    const auto scan = scan_json(text);
    if (!scan) return;
    JsonEdit inner(*scan, absent ? 0 : member->value_begin);
    for (Nested& nested : nested_) {
      if (nested.parent == parent)
        change(inner, *scan, *nested.edit, nested.name, std::move(nested.value));
    }
    if (!absent) {
      top_.add(inner.edits());
    } else if (const std::string made = splice_text(text, inner.edits()); made != "{}") {
      top_.set(parent, made);
    }
  }

  std::string_view body_;
  const BodyFacts& facts_;
  const Names& names_;
  JsonEdit top_;
  std::vector<Nested> nested_;
};

}  // namespace

Result<BodyPieces> make_leg_body(const Connector& connector, LegPart leg,
                                 const std::shared_ptr<const std::string>& body,
                                 const BodyFacts& facts, const LegValues& values,
                                 const Harvest* harvest) {
  const Names names(values, harvest);
  LegEditor editor(*body, facts, names);
  editor.erase(connector.owned);
  if (leg != LegPart::kAlone) TANDEM_CHECK(editor.apply(connector.both));
  if (leg == LegPart::kPrefill) TANDEM_CHECK(editor.apply(connector.prefill));
  if (leg == LegPart::kDecode || leg == LegPart::kRelease)
    TANDEM_CHECK(editor.apply(connector.decode));
  TANDEM_CHECK(editor.apply(connector.every));
  if (leg == LegPart::kRelease) TANDEM_CHECK(editor.apply(connector.release));
  const bool answers = leg == LegPart::kDecode || leg == LegPart::kAlone;
  if (answers && values.ask_usage && facts.stream && !facts.include_usage)
    TANDEM_CHECK(editor.apply(std::span(&kAskUsage, 1)));
  return splice(body, editor.edits());
}

std::vector<std::pair<std::string, std::string>> leg_headers(const Connector& connector,
                                                             LegPart leg, const LegValues& values) {
  std::vector<std::pair<std::string, std::string>> headers;
  for (const HeaderEdit& edit : connector.headers) {
    if ((edit.legs & leg_bit(leg)) == 0) continue;
    const bool rank = edit.value == "$DP_RANK";
    std::string value = rank ? (values.dp_rank ? std::to_string(*values.dp_rank) : std::string())
                             : values.request_id;
    if (!value.empty()) headers.emplace_back(edit.name, std::move(value));
  }
  return headers;
}

std::string abort_body(const Connector& connector, std::string_view rid) {
  if (connector.abort.path.empty() || rid.empty()) return {};
  LegValues values;
  values.rid = rid;
  const auto body = Names(values, nullptr).fill(connector.abort.body);
  return body.value_or(std::string());
}

std::string identity_probe(const Connector& connector, std::string_view model) {
  auto body =
      std::make_shared<const std::string>("{\"model\":" + quoted(model) + ",\"prompt\":\".\"}");
  const auto facts = read_facts(Api::kCompletions, *body);
  if (!facts) return {};
  const auto leg = make_leg_body(connector, LegPart::kPrefill, body, *facts, {});
  return leg ? leg->str() : std::string();
}

std::optional<PrefillIdentity> identity_of(const Harvest& harvest) {
  const auto scan = scan_json(harvest.params);
  if (!scan) return std::nullopt;
  const std::string_view text = harvest.params;
  const auto number = [&](const char* name) {
    const JsonMemberSpan* const member = scan->find(name);
    const bool given = member != nullptr && member->kind == Kind::kNumber;
    return given ? std::string(json_value_of(text, *member)) : std::string();
  };
  PrefillIdentity identity;
  identity.engine_id = json_text_of(text, scan->find("remote_engine_id")).value_or("");
  identity.host = json_text_of(text, scan->find("remote_host")).value_or("");
  identity.port = number("remote_port");
  identity.tp_size = number("tp_size");
  if (identity.tp_size.empty()) identity.tp_size = "1";
  if (identity.engine_id.empty() || identity.host.empty() || identity.port.empty())
    return std::nullopt;
  return identity;
}

}  // namespace tandem::router
