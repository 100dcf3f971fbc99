#include "base/reply_text.h"

#include <algorithm>

#include "base/json_pointer.h"

namespace tandem {

namespace {

const char* error_type(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

std::string param_of(std::string_view pointer) {
  std::string out;
  while (!pointer.empty()) {
    const std::string part = take_pointer_key(pointer);
    const bool index =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (index && !out.empty()) {
      out += '[' + part + ']';
    } else {
      if (!out.empty()) out += '.';
      out += part;
    }
  }
  return out;
}

}  // namespace

JsonValue error_json(const Error& error) {
  const bool named = error.pointer && !error.pointer->empty();
  JsonValue detail = JsonValue::object();
  detail.set("message", JsonValue::string(error.message));
  detail.set("type", JsonValue::string(error_type(error.status)));
  detail.set("param", named ? JsonValue::string(param_of(*error.pointer)) : JsonValue());
  detail.set("code", JsonValue::string(error.code));
  return JsonValue::object({{"error", std::move(detail)}});
}

std::string error_body(const Error& error) { return error_json(error).dump(); }

std::string sse_frame(std::string_view data) {
  std::string out;
  size_t begin = 0;
  while (true) {
    const size_t end = data.find('\n', begin);
    out += "data: ";
    out += data.substr(begin, end == std::string_view::npos ? std::string_view::npos : end - begin);
    out += '\n';
    if (end == std::string_view::npos) break;
    begin = end + 1;
  }
  out += '\n';
  return out;
}

std::string sse_frame(const JsonValue& json) {
  std::string frame = "data: ";
  json.dump_to(frame);
  frame += "\n\n";
  return frame;
}

std::string sse_error(const Error& error) {
  return sse_frame(error_json(error)) + std::string(kSseDone);
}

}  // namespace tandem
