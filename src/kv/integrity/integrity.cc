#include "kv/integrity/integrity.h"

#include <array>
#include <charconv>
#include <string>
#include <utility>

namespace tandem::kv {
namespace {

constexpr std::array<std::pair<std::string_view, KvFault>, 7> kFaults = {{
    {"swap-pages", KvFault::kSwapPages},
    {"free-early", KvFault::kFreeEarly},
    {"stale-generation", KvFault::kStaleGeneration},
    {"flip-bit", KvFault::kFlipBit},
    {"lost-layer", KvFault::kLostLayer},
    {"flip-bit-in-copy", KvFault::kFlipBitInCopy},
    {"lost-layer-in-copy", KvFault::kLostLayerInCopy},
}};

}  // namespace

std::string_view integrity_name(IntegrityLevel level) {
  static constexpr std::string_view kNames[] = {"off", "tags", "full"};
  return kNames[static_cast<size_t>(level)];
}

Result<IntegrityLevel> parse_integrity(std::string_view name) {
  for (const auto level : {IntegrityLevel::kOff, IntegrityLevel::kTags, IntegrityLevel::kFull}) {
    if (integrity_name(level) == name) return level;
  }
  return make_error(400, "invalid_option", "--kv-integrity is off, tags or full.");
}

bool KvFaults::due(KvFault which) {
  if (kind != which || planted) return false;
  planted = seen++ >= after;
  return planted;
}

Result<KvFaults> parse_kv_fault(std::string_view text) {
  KvFaults faults;
  if (text.empty()) return faults;
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  for (const auto& [known, kind] : kFaults) {
    if (known == name) faults.kind = kind;
  }
  bool good = faults.kind != KvFault::kNone;
  if (good && colon != std::string_view::npos) {
    const std::string_view number = text.substr(colon + 1);
    const char* const begin = number.data();
    const char* const end = begin + number.size();
    const auto read = std::from_chars(begin, end, faults.after);
    good = read.ec == std::errc() && read.ptr == end;
  }
  if (!good) {
    std::string names;
    for (const auto& known : kFaults)
      names += (names.empty() ? "" : ", ") + std::string(known.first);
    return make_error(400, "invalid_option", "--kv-fault is NAME[:AFTER], of " + names + ".");
  }
  return faults;
}

}  // namespace tandem::kv
