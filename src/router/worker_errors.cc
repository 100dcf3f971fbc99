#include "router/worker_errors.h"

#include <algorithm>

#include "base/json_scan.h"
#include "base/json_value.h"
#include "router/usage/reply_words.h"

namespace tandem::router {

Error with_details(Error error, std::string_view object) {
  const auto json = parse_json(object);
  const JsonValue* const fields = json ? json->find("error") : nullptr;
  const JsonValue* const code = fields == nullptr ? nullptr : fields->find("code");
  const JsonValue* const message = fields == nullptr ? nullptr : fields->find("message");
  if (code != nullptr && code->is_string()) error.code = code->as_string();
  if (message != nullptr && message->is_string()) error.message = message->as_string();
  return error;
}

bool is_the_models(const Error& error) {
  return error.status == 500 &&
         (error.code == "non_finite_logits" || error.code == "embedding_not_finite");
}

bool is_the_memorys(const Error& error) {
  return error.status == 500 && error.code == "kv_integrity";
}

bool names_lost_peer(const Error& error) {
  static constexpr std::string_view kCodes[] = {"prefill_lost", "connect_failed", "connect_timeout",
                                                "handoff_timeout"};
  return error.status >= 500 && std::ranges::find(kCodes, error.code) != std::end(kCodes);
}

bool is_error_object(std::string_view json_text) {
  if (find_word(json_text, "\"error\"") == std::string_view::npos) return false;
  const auto scan = scan_json(json_text);
  if (!scan || scan->is_array()) return false;
  const JsonMemberSpan* const error = scan->find("error");
  return error != nullptr && error->kind != JsonValue::Kind::kNull;
}

bool is_json_object(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  const size_t last = text.find_last_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  return (text[first] == '{' && text[last] == '}') || (text[first] == '[' && text[last] == ']');
}

}  // namespace tandem::router
