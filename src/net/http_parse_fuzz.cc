#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "net/http_parse.h"

// The first byte picks request or response and how the rest is cut. One message must come out the
// same however it is cut, and nothing may outgrow its limit.
namespace {

struct Outcome {
  bool complete = false;
  bool failed = false;
  std::string target;
  std::string body;
  size_t fields = 0;
  size_t used = 0;
  bool operator==(const Outcome&) const = default;
};

// What no later reader may be able to take otherwise.
void check_request(tandem::net::MessageParser& parser) {
  const auto has_control = [](std::string_view text) {
    return std::any_of(text.begin(), text.end(), [](char c) {
      return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
    });
  };
  for (const auto& [name, value] : parser.headers()) {
    if (name.empty() || has_control(name) || has_control(value)) std::abort();
  }
  if (has_control(parser.target())) std::abort();
  const size_t lengths = parser.headers().count("content-length");
  const size_t codings = parser.headers().count("transfer-encoding");
  if (lengths + codings > 1) std::abort();
}

Outcome parse(tandem::net::MessageParser::Kind kind, std::string_view bytes, size_t piece) {
  const tandem::net::MessageParser::Limits limits{4096, 8192, 32, 1024};
  tandem::net::MessageParser parser(kind, limits);
  size_t at = 0;
  size_t end = 0;
  while (at < bytes.size() && !parser.complete() && !parser.error()) {
    end = std::max(end, std::min(bytes.size(), at + piece));
    const bool head_before = parser.head_complete();
    const size_t used = parser.feed(bytes.substr(at, end - at));
    at += used;
    // The byte that ends the head may come alone: it is not used when the parser stops there, once.
    if (used == 0 && parser.head_complete() != head_before) continue;
    if (used == 0 || at == end) {
      if (end == bytes.size() && used == 0) break;
      end = std::min(bytes.size(), end + piece);
    }
  }
  if (parser.body().size() > limits.body_bytes &&
      kind == tandem::net::MessageParser::Kind::kRequest && !parser.error())
    std::abort();
  if (parser.headers().size() > limits.header_fields) std::abort();
  if (kind == tandem::net::MessageParser::Kind::kRequest && parser.head_complete() &&
      !parser.error())
    check_request(parser);
  Outcome outcome;
  outcome.complete = parser.complete();
  outcome.failed = parser.error().has_value();
  if (outcome.complete) {
    outcome.target = parser.target();
    outcome.body = parser.body();
    outcome.fields = parser.headers().size();
    outcome.used = at;
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto kind = (data[0] & 1) != 0 ? tandem::net::MessageParser::Kind::kRequest
                                       : tandem::net::MessageParser::Kind::kResponse;
  const size_t piece = static_cast<size_t>(data[0] >> 1) + 1;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const Outcome whole = parse(kind, bytes, bytes.size());
  const Outcome cut = parse(kind, bytes, piece);
  if (whole.complete != cut.complete) std::abort();
  if (whole.complete && !(whole == cut)) std::abort();
  return 0;
}
