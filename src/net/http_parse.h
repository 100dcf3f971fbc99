// MessageParser: pushes bytes of one HTTP/1.x message at a time through the system's http_parser.
// The rules that http_parser leaves open (smuggling, limits, unknown codings, missing Host) are
// decided here: it is lenient about line ends, folded lines, control bytes and chunks, so heads of
// requests are checked before it sees them and chunks are taken apart by ChunkDecoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "net/headers.h"

namespace tandem::net {

class MessageParser {
 public:
  enum class Kind { kRequest, kResponse };
  struct Limits {
    size_t header_bytes = 64ULL << 10;  // start line and fields; trailers too. At most 1 MiB.
    size_t body_bytes = 64ULL << 20;    // whole body; requests only
    size_t header_fields = 256;
    size_t target_bytes = 16ULL << 10;  // requests only
  };

  MessageParser(Kind kind, Limits limits);
  ~MessageParser();
  MessageParser(const MessageParser&) = delete;
  MessageParser& operator=(const MessageParser&) = delete;

  // For the next message on the same connection.
  void reset();
  // A response to HEAD has no body whatever its head says. Before the head is complete.
  void expect_no_body();

  // Takes bytes and returns how many were used. Stops (using fewer) at the end of the head, once,
  // so that the caller can look before the body comes; at the end of the message; and at an error.
  size_t feed(std::string_view bytes);
  // The peer closed. Ends a response that is delimited by the close; otherwise an error if inside a
  // message.
  void feed_end();

  bool started() const;  // at least one byte of the message was seen
  bool head_complete() const;
  bool complete() const;
  const std::optional<Error>& error()
      const;  // status 400, 405, 414, 431, 505; responses: 502 "bad_response"

  // Valid once the head is complete.
  const std::string& method() const;
  const std::string& target() const;
  int status() const;
  Headers& headers();
  bool keep_alive() const;    // what the message allows
  int minor_version() const;  // HTTP/1.x
  bool chunked() const;
  std::optional<uint64_t> content_length() const;

  // Body bytes so far, transfer coding removed; the caller may take them away as they come.
  std::string& body();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::net
