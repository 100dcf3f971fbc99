#include "net/http_parse.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <http_parser.h>

#include "net/chunked.h"

namespace tandem::net {

namespace {

constexpr size_t kUsualFields = 12;
constexpr uint64_t kReserved = 4U << 20;  // of an announced body, once its first bytes are there
constexpr uint32_t kParserHeaderLimit = 1U << 20;  // ours is checked first and is smaller

constexpr std::array<bool, 256> kTokenCharacters = [] {
  std::array<bool, 256> made{};
  for (const unsigned char c : std::string_view("!#$%&'*+-.^_`|~")) made[c] = true;
  for (unsigned char c = '0'; c <= '9'; ++c) made[c] = true;
  for (unsigned char c = 'a'; c <= 'z'; ++c) made[c] = made[c - 'a' + 'A'] = true;
  return made;
}();

bool is_token_character(char c) { return kTokenCharacters[static_cast<unsigned char>(c)]; }

}  // namespace

struct MessageParser::Impl {
  Kind kind;
  Limits limits;
  http_parser parser{};
  std::string target;
  std::string method;
  Headers headers;
  std::string body;
  std::optional<Error> error;
  size_t header_bytes = 0;
  uint64_t body_bytes = 0;
  std::optional<uint64_t> content_length;
  bool started = false;
  bool in_value = false;
  bool head_complete = false;
  bool complete = false;
  bool no_body = false;
  bool keep_alive = false;
  bool chunked = false;
  // Of the head's raw bytes, before http_parser.
  bool head_scanned = false;
  bool line_seen = false;  // one line that is not empty
  size_t line_bytes = 0;
  char last = '\0';
  // Instead of http_parser for chunked bodies; it starts with the head's last byte.
  ChunkDecoder chunks;
  bool decoding = false;
  bool at_head_end = false;

  Impl(Kind which, Limits bounds)
      : kind(which),
        limits(bounds),
        chunks(which == Kind::kRequest ? bounds.body_bytes : std::numeric_limits<uint64_t>::max(),
               bounds.header_bytes) {
    static const bool kOnce = [] {
      http_parser_set_max_header_size(kParserHeaderLimit);
      return true;
    }();
    (void)kOnce;
    limits.header_bytes = std::min<size_t>(limits.header_bytes, kParserHeaderLimit / 2);
    reset();
  }

  void reset() {
    http_parser_init(&parser, kind == Kind::kRequest ? HTTP_REQUEST : HTTP_RESPONSE);
    parser.data = this;
    target.clear();
    method.clear();
    headers = Headers();
    body.clear();
    error.reset();
    header_bytes = 0;
    body_bytes = 0;
    content_length.reset();
    started = in_value = head_complete = complete = no_body = keep_alive = chunked = false;
    head_scanned = kind == Kind::kResponse;
    line_seen = decoding = at_head_end = false;
    line_bytes = 0;
    last = '\0';
    chunks.reset();
  }

  int fail(int code_status, std::string code, std::string message) {
    if (!error) {
      if (kind == Kind::kResponse) {
        error = Error{502, "bad_response", "the upstream's answer is not valid HTTP: " + message};
      } else {
        error = Error{code_status, std::move(code), std::move(message)};
      }
    }
    return 1;
  }

  int bad(std::string message) { return fail(400, "bad_request", std::move(message)); }

  int count_header(size_t bytes) {
    header_bytes += bytes;
    if (header_bytes <= limits.header_bytes) return 0;
    return fail(
        431, "headers_too_large",
        "the request's headers are larger than " + std::to_string(limits.header_bytes) + " bytes");
  }

  // Bare line ends, folded lines and control bytes in a request's head: other readers on the way
  // may see another request in them.
  int scan_head(std::string_view bytes) {
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '\n') {
        if (last != '\r') return bad("a line of the head ends without a carriage return");
        if (line_bytes == 0 && line_seen) {
          head_scanned = true;
          return 0;
        }
        line_seen = line_seen || line_bytes > 0;
        line_bytes = 0;
      } else if (last == '\r') {
        return bad("a carriage return inside a line of the head");
      } else if (c != '\r') {
        if (line_bytes == 0 && line_seen && (c == ' ' || c == '\t'))
          return bad("folded header lines are not understood");
        if ((byte < 0x20 && c != '\t') || byte == 0x7f) return bad("a control byte in the head");
        ++line_bytes;
      }
      last = c;
    }
    return 0;
  }

  int on_target(std::string_view text) {
    if (kind == Kind::kRequest && target.size() + text.size() > limits.target_bytes) {
      return fail(
          414, "uri_too_long",
          "the request's target is longer than " + std::to_string(limits.target_bytes) + " bytes");
    }
    if (count_header(text.size()) != 0) return 1;
    target.append(text);
    return 0;
  }

  int on_field(std::string_view text) {
    if (count_header(text.size()) != 0) return 1;
    auto& fields = headers.fields();
    if (in_value || fields.empty()) {
      if (fields.size() >= limits.header_fields)
        return fail(431, "headers_too_large", "too many header fields");
      if (fields.empty()) fields.reserve(kUsualFields);
      fields.emplace_back();
      in_value = false;
    }
    if (!std::all_of(text.begin(), text.end(), is_token_character))
      return bad("a header's name has an illegal byte");
    fields.back().first.append(text);
    return 0;
  }

  int on_value(std::string_view text) {
    if (count_header(text.size()) != 0) return 1;
    in_value = true;
    if (headers.fields().empty()) return bad("a header without a name");
    headers.fields().back().second.append(text);
    return 0;
  }

  int check_framing() {
    const size_t lengths = headers.count("content-length");
    const size_t codings = headers.count("transfer-encoding");
    if (lengths > 1 || (lengths > 0 && codings > 0)) return bad("the body's length is given twice");
    if (codings > 1) return bad("more than one Transfer-Encoding");
    if (codings == 1) {
      if (!equal_ignoring_case(headers.get("transfer-encoding"), "chunked")) {
        return fail(400, "unsupported_transfer_coding",
                    "only the 'chunked' transfer coding is understood");
      }
      if (parser.http_major == 1 && parser.http_minor == 0)
        return bad("Transfer-Encoding in HTTP/1.0");
      chunked = true;
    }
    if (lengths == 1 && parser.content_length != std::numeric_limits<uint64_t>::max()) {
      content_length = parser.content_length;
    }
    return 0;
  }

  int check_request() {
    method = http_method_str(static_cast<http_method>(parser.method));
    if (method == "CONNECT") return fail(405, "method_not_allowed", "CONNECT is not supported");
    const size_t hosts = headers.count("host");
    if (hosts > 1 || (hosts == 0 && parser.http_minor >= 1))
      return bad("exactly one Host header is needed");
    if (target.empty() || (target[0] != '/' && target != "*" && !target.starts_with("http://"))) {
      return bad("the request target must be a path");
    }
    if (content_length && *content_length > limits.body_bytes) return too_large();
    return 0;
  }

  int too_large() {
    // Not 413: clients that repeat a refused request stop at a 400 only.
    return fail(400, "request_too_large",
                "the request's body is larger than the " + std::to_string(limits.body_bytes) +
                    " bytes that this server takes");
  }

  int on_head() {
    if (parser.http_major != 1 || parser.http_minor > 1) {
      return fail(505, "http_version_not_supported", "this server speaks HTTP/1.1");
    }
    if (check_framing() != 0) return 1;
    if (kind == Kind::kRequest && check_request() != 0) return 1;
    keep_alive = http_should_keep_alive(&parser) != 0;
    if (kind == Kind::kResponse) {
      const unsigned status = parser.status_code;
      no_body = no_body || status < 200 || status == 204 || status == 304;
    }
    decoding = at_head_end = chunked && !no_body;
    parser.upgrade = 0;  // an Upgrade is an offer, and we decline it
    head_complete = true;
    http_parser_pause(&parser, 1);
    return 0;
  }

  int on_body(std::string_view text) {
    body_bytes += text.size();
    if (kind == Kind::kRequest) {
      if (body_bytes > limits.body_bytes) return too_large();
      if (body.empty() && content_length)
        body.reserve(static_cast<size_t>(std::min(*content_length, kReserved)));
    }
    body.append(text);
    return 0;
  }

  size_t feed_chunks(std::string_view bytes) {
    size_t skipped = 0;
    if (at_head_end) {  // the byte at which http_parser stopped
      at_head_end = false;
      skipped = 1;
    }
    const size_t used = skipped + chunks.feed(bytes.substr(skipped), body);
    switch (chunks.outcome()) {
      case ChunkDecoder::Outcome::kMore:
        break;
      case ChunkDecoder::Outcome::kDone:
        complete = true;
        break;
      case ChunkDecoder::Outcome::kMalformed:
        bad("the chunked body is malformed");
        break;
      case ChunkDecoder::Outcome::kTooLarge:
        too_large();
        break;
      case ChunkDecoder::Outcome::kTrailersTooLarge:
        fail(431, "headers_too_large", "the request's trailers are too large");
        break;
    }
    return used;
  }

  void explain(std::string_view bytes) {
    if (error) return;
    const auto number = static_cast<http_errno>(parser.http_errno);
    switch (number) {
      case HPE_HEADER_OVERFLOW:
        fail(431, "headers_too_large", "the request's headers are too large");
        break;
      case HPE_INVALID_VERSION:
        fail(505, "http_version_not_supported", "this server speaks HTTP/1.1");
        break;
      case HPE_INVALID_METHOD: {
        const std::string_view word = bytes.substr(0, bytes.find(' '));
        const bool token = !word.empty() && word.size() <= 32 &&
                           std::all_of(word.begin(), word.end(), is_token_character);
        if (token && word.size() < bytes.size()) {
          // Not 501: clients repeat what gets a 5xx.
          fail(405, "method_not_allowed", "no path answers this method");
        } else {
          bad("not an HTTP request");
        }
        break;
      }
      default:
        bad(std::string("malformed HTTP message: ") + http_errno_description(number));
    }
  }
};

MessageParser::MessageParser(Kind kind, Limits limits)
    : impl_(std::make_unique<Impl>(kind, limits)) {}
MessageParser::~MessageParser() = default;

void MessageParser::reset() { impl_->reset(); }
void MessageParser::expect_no_body() { impl_->no_body = true; }

size_t MessageParser::feed(std::string_view bytes) {
  Impl& self = *impl_;
  if (self.error || self.complete || bytes.empty()) return 0;
  static const http_parser_settings kSettings = [] {
    http_parser_settings made;
    http_parser_settings_init(&made);
    made.on_url = [](http_parser* parser, const char* at, size_t size) {
      return static_cast<Impl*>(parser->data)->on_target({at, size});
    };
    made.on_header_field = [](http_parser* parser, const char* at, size_t size) {
      return static_cast<Impl*>(parser->data)->on_field({at, size});
    };
    made.on_header_value = [](http_parser* parser, const char* at, size_t size) {
      return static_cast<Impl*>(parser->data)->on_value({at, size});
    };
    made.on_body = [](http_parser* parser, const char* at, size_t size) {
      return static_cast<Impl*>(parser->data)->on_body({at, size});
    };
    made.on_headers_complete = [](http_parser* parser) {
      auto& owner = *static_cast<Impl*>(parser->data);
      // Callback errors here are numbers with a meaning; ours is any other.
      if (owner.on_head() != 0) return -1;
      return owner.no_body ? 1 : 0;
    };
    made.on_message_complete = [](http_parser* parser) {
      static_cast<Impl*>(parser->data)->complete = true;
      http_parser_pause(parser, 1);
      return 0;
    };
    return made;
  }();
  self.started = true;
  if (self.decoding) return self.feed_chunks(bytes);
  if (!self.head_scanned && self.scan_head(bytes) != 0) return 0;
  if (self.head_complete) http_parser_pause(&self.parser, 0);
  const size_t used = http_parser_execute(&self.parser, &kSettings, bytes.data(), bytes.size());
  const auto number = static_cast<http_errno>(self.parser.http_errno);
  if (number != HPE_OK && number != HPE_PAUSED) self.explain(bytes);
  return std::min(used, bytes.size());
}

void MessageParser::feed_end() {
  Impl& self = *impl_;
  if (self.error || self.complete) return;
  if (self.kind == Kind::kResponse && self.head_complete && !self.chunked && !self.content_length) {
    self.complete = true;  // the close is the end
    self.keep_alive = false;
    return;
  }
  if (self.started) {
    self.error = Error{self.kind == Kind::kRequest ? 400 : 502,
                       self.kind == Kind::kRequest ? "bad_request" : "connection_lost",
                       "the connection closed inside a message"};
  }
}

bool MessageParser::started() const { return impl_->started; }
bool MessageParser::head_complete() const { return impl_->head_complete; }
bool MessageParser::complete() const { return impl_->complete; }
const std::optional<Error>& MessageParser::error() const { return impl_->error; }
const std::string& MessageParser::method() const { return impl_->method; }
const std::string& MessageParser::target() const { return impl_->target; }
int MessageParser::status() const { return static_cast<int>(impl_->parser.status_code); }
Headers& MessageParser::headers() { return impl_->headers; }
bool MessageParser::keep_alive() const { return impl_->keep_alive; }
int MessageParser::minor_version() const { return impl_->parser.http_minor; }
bool MessageParser::chunked() const { return impl_->chunked; }
std::optional<uint64_t> MessageParser::content_length() const { return impl_->content_length; }
std::string& MessageParser::body() { return impl_->body; }

}  // namespace tandem::net
