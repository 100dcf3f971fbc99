#include <algorithm>
#include <array>
#include <cstdint>

#include "base/json_skip.h"

namespace tandem {

namespace {

// The value of four hexadecimal digits, or -1.
int32_t hex4(const char* at) {
  int32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = at[i];
    int32_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = c - 'A' + 10;
    } else {
      return -1;
    }
    value = value * 16 + digit;
  }
  return value;
}

const char* skip_string(const char* at, const char* end) {
  while (at < end) {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte == '"') return at + 1;
    if (byte == '\\') {
      at = skip_json_escape(at, end);
      if (at == nullptr) return nullptr;
    } else if (byte < 0x20) {
      return nullptr;
    } else {
      ++at;
    }
  }
  return nullptr;
}

// The scanner's own loop is as good.
const char* skip_integers(const char* at, const char* /*end*/, size_t* /*skipped*/) { return at; }

constexpr JsonSkip kScalar{skip_string, skip_integers};

}  // namespace

const char* skip_json_escape(const char* at, const char* end) {
  if (end - at < 2) return nullptr;
  switch (at[1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
      return at + 2;
    case 'u':
      break;
    default:
      return nullptr;
  }
  if (end - at < 6) return nullptr;
  const int32_t unit = hex4(at + 2);
  if (unit < 0) return nullptr;
  if (unit < 0xd800 || unit > 0xdfff) return at + 6;
  // A high half needs a low half behind it; a low half alone is nothing.
  if (unit > 0xdbff || end - at < 12 || at[6] != '\\' || at[7] != 'u') return nullptr;
  const int32_t low = hex4(at + 8);
  return low >= 0xdc00 && low <= 0xdfff ? at + 12 : nullptr;
}

const JsonSkip& json_skip(CpuLevel most) {
#if defined(__x86_64__)
  const CpuLevel level = std::min(most, machine_cpu_level());
  if (level >= CpuLevel::kAvx512) return kJsonSkipAvx512;
  if (level == CpuLevel::kAvx2) return kJsonSkipAvx2;
#else
  (void)most;
#endif
  return kScalar;
}

}  // namespace tandem
