#include "mock/options.h"

#include <array>

namespace tandem::mock {

namespace {

struct Row {
  Dialect dialect;
  std::string_view name;
};
constexpr std::array<Row, 9> kDialects = {{{Dialect::kTandem, "tandem"},
                                           {Dialect::kSglang, "sglang"},
                                           {Dialect::kVllmNixl, "vllm-nixl"},
                                           {Dialect::kVllmNixlPush, "vllm-nixl-push"},
                                           {Dialect::kVllmMooncake, "vllm-mooncake"},
                                           {Dialect::kVllmMoriio, "vllm-moriio"},
                                           {Dialect::kVllmMoriioWrite, "vllm-moriio-write"},
                                           {Dialect::kTrtllm, "trtllm"},
                                           {Dialect::kOpenai, "openai"}}};

}  // namespace

std::string_view dialect_name(Dialect dialect) {
  for (const Row& row : kDialects) {
    if (row.dialect == dialect) return row.name;
  }
  return "openai";
}

Result<Dialect> parse_dialect(std::string_view name) {
  std::string names;
  for (const Row& row : kDialects) {
    if (row.name == name) return row.dialect;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return make_error(400, "invalid_option",
                    "There is no dialect \"" + std::string(name) + "\"; there are " + names + ".");
}

std::string_view role_name(Role role) {
  return role == Role::kPrefill ? "prefill" : role == Role::kDecode ? "decode" : "unified";
}

}  // namespace tandem::mock
