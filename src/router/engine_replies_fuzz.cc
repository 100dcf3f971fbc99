#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "router/engine_replies.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)tandem::router::parse_model_list(text);
  (void)tandem::router::parse_server_info(text);
  (void)tandem::router::parse_mooncake_query(text);
  (void)tandem::router::parse_load_reply(text);
  constexpr std::array<std::string_view, 1> kNames = {"vllm:num_requests_running"};
  (void)tandem::router::parse_load_metrics(text, kNames, kNames);
  return 0;
}
