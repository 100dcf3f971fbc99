// A template of any bytes, parsed and rendered over a small conversation: no crash, bounded work.
#include <cstdint>
#include <string_view>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::text::jinja;
  const auto body = parse(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!body) return 0;
  static const Variables context = [] {
    const auto json = tandem::parse_json(
        R"({"messages":[{"role":"user","content":"hi <x>"},{"role":"assistant","content":null,)"
        R"("tool_calls":[{"function":{"name":"f","arguments":{"a":[1,2.5,null]}}}]}],"n":7,"s":"abc é","l":[3,1,2]})");
    Variables made;
    for (const auto& [key, value] : json->members()) made.emplace_back(key, from_json(value));
    return made;
  }();
  RenderOptions options;
  options.limits = {.steps = 20'000, .string_bytes = 1 << 20, .depth = 200};
  options.now = 0;
  (void)render(*body, context, options);
  return 0;
}
