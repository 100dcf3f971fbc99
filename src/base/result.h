// Result<T>: a value or an Error made where the cause is known and shown at the edge.
// Library exceptions are caught where the library is called; nothing here throws.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <tl/expected.hpp>

namespace tandem {

// `status` is the HTTP status the edge answers with; `code` is stable and machine-readable (for
// example "context_length_exceeded"); `message` is one sentence for a person that says what to do;
// `pointer` is the JSON pointer of the offending field, if there is one.
struct Error {
  int status = 500;
  std::string code = "internal_error";
  std::string message;
  std::optional<std::string> pointer = std::nullopt;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> make_error(int status, std::string code, std::string message,
                                        std::optional<std::string> pointer = std::nullopt) {
  return tl::unexpected<Error>(
      Error{status, std::move(code), std::move(message), std::move(pointer)});
}

inline tl::unexpected<Error> invalid_request(std::string message,
                                             std::optional<std::string> pointer = std::nullopt) {
  return make_error(400, "invalid_request_error", std::move(message), std::move(pointer));
}

inline tl::unexpected<Error> internal_error(std::string message) {
  return make_error(500, "internal_error", std::move(message));
}

}  // namespace tandem

// Returns the error of `expression`, or binds its value to `name`.
#define TANDEM_TRY(name, expression)                                           \
  auto name##_result = (expression);                                           \
  if (!name##_result) return tl::unexpected(std::move(name##_result).error()); \
  auto& name = *name##_result

#define TANDEM_CHECK(expression)                              \
  do {                                                        \
    if (auto check_result = (expression); !check_result)      \
      return tl::unexpected(std::move(check_result).error()); \
  } while (false)
