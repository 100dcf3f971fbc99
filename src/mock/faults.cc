#include "mock/faults.h"

#include <array>
#include <charconv>

namespace tandem::mock {

namespace {

struct Row {
  FaultKind kind;
  std::string_view name;
};
constexpr std::array<Row, 17> kFaults = {{{FaultKind::kRefuse, "refuse"},
                                          {FaultKind::kStatus, "status"},
                                          {FaultKind::kStall, "stall"},
                                          {FaultKind::kSlow, "slow"},
                                          {FaultKind::kDieAfterHead, "die-after-head"},
                                          {FaultKind::kDieMidStream, "die-mid-stream"},
                                          {FaultKind::kStallMidStream, "stall-mid-stream"},
                                          {FaultKind::kTruncate, "truncate"},
                                          {FaultKind::kNoDone, "no-done"},
                                          {FaultKind::kErrorFrame, "error-frame"},
                                          {FaultKind::kGarbage, "garbage"},
                                          {FaultKind::kWrongUsage, "wrong-usage"},
                                          {FaultKind::kAbort, "abort"},
                                          {FaultKind::kAbortTransfer, "abort-transfer"},
                                          {FaultKind::kRestart, "restart"},
                                          {FaultKind::kSlowRead, "slow-read"},
                                          {FaultKind::kMuteHealth, "mute-health"}}};

template <typename Number>
bool read_number(std::string_view text, Number& out) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  return !text.empty() && std::from_chars(begin, end, out).ptr == end;
}

}  // namespace

std::string fault_names() {
  std::string names;
  for (const Row& row : kFaults) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

Result<Fault> parse_fault(std::string_view text) {
  const auto bad = [&] {
    return make_error(400, "invalid_option",
                      "\"" + std::string(text) +
                          "\" is not a fault: NAME[=STATUS][*PROBABILITY][#TIMES], where NAME is "
                          "one of " +
                          fault_names() + ".");
  };
  Fault fault;
  std::string_view rest = text;
  if (const size_t at = rest.find('#'); at != std::string_view::npos) {
    if (!read_number(rest.substr(at + 1), fault.left) || fault.left < 0) return bad();
    rest = rest.substr(0, at);
  }
  if (const size_t at = rest.find('*'); at != std::string_view::npos) {
    if (!read_number(rest.substr(at + 1), fault.probability)) return bad();
    if (!(fault.probability >= 0 && fault.probability <= 1)) return bad();
    rest = rest.substr(0, at);
  }
  std::string_view status;
  if (const size_t at = rest.find('='); at != std::string_view::npos) {
    status = rest.substr(at + 1);
    rest = rest.substr(0, at);
  }
  for (const Row& row : kFaults) {
    if (row.name == rest) fault.kind = row.kind;
  }
  if (fault.kind == FaultKind::kNone) return bad();
  if ((fault.kind == FaultKind::kStatus) != !status.empty()) return bad();
  if (!status.empty() &&
      (!read_number(status, fault.status) || fault.status < 400 || fault.status > 599))
    return bad();
  return fault;
}

// SplitMix64.
uint64_t Faults::random() {
  state_ += 0x9e3779b97f4a7c15U;
  uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

bool Faults::happens(Fault& fault) {
  if (fault.left == 0) return false;
  if (static_cast<double>(random() >> 11) * 0x1p-53 >= fault.probability) return false;
  if (fault.left > 0) --fault.left;
  return true;
}

Fault Faults::next() {
  for (Fault& fault : faults_) {
    const bool by_name = fault.kind == FaultKind::kSlowRead || fault.kind == FaultKind::kMuteHealth;
    if (!by_name && happens(fault)) return fault;
  }
  return {};
}

bool Faults::happens(FaultKind kind) {
  for (Fault& fault : faults_) {
    if (fault.kind == kind && happens(fault)) return true;
  }
  return false;
}

}  // namespace tandem::mock
