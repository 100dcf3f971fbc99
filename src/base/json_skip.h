// The two loops that take nearly all the time of a scan of JSON (json_scan.h): skipping a string,
// and skipping a list of integers. json_skip_scalar.cc is normative; the others look at 64 bytes
// at a time and agree with it byte for byte.
#pragma once

#include <cstddef>

#include "base/cpu_level.h"

namespace tandem {

struct JsonSkip {
  // `at` is the first byte behind an opening quote. One past the closing quote; nullptr when the
  // string does not end before `end`, or holds a control character, an unknown escape or half a
  // surrogate pair. UTF-8 is not looked at.
  const char* (*string)(const char* at, const char* end);
  // `at` is where an element of an array begins. Skips as many whole `integer,` (a blank may
  // follow the comma) as it likes and counts them; where it returns an element begins again.
  const char* (*integers)(const char* at, const char* end, size_t* skipped);
};

// The best that this machine has, at most `most`. Thread-safe.
const JsonSkip& json_skip(CpuLevel most = CpuLevel::kAvx512);

// One past the escape that begins with the backslash at `at`; nullptr when it is none. A surrogate
// pair is one escape.
const char* skip_json_escape(const char* at, const char* end);

extern const JsonSkip kJsonSkipAvx2;
extern const JsonSkip kJsonSkipAvx512;

}  // namespace tandem
