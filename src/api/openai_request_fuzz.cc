// A request body of any bytes: refused with a 400, or rendered to tokens.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "api/openai.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const auto body = parse_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!body) return 0;
  for (const auto endpoint : {api::Endpoint::kChatCompletions, api::Endpoint::kCompletions}) {
    const auto request = api::parse_request(endpoint, *body, true);
    if (!request) {
      if (request.error().status != 400 || request.error().message.empty()) std::abort();
      continue;
    }
    if (request->envelope) {
      const JsonValue json = api::envelope_to_json(*request->envelope);
      if (api::envelope_to_json(*api::parse_envelope(json)).dump() != json.dump()) std::abort();
    }
    api::ResponseRenderer renderer(*request, "id", 0, request->model);
    (void)renderer.render(protocol::FinishEvent{});
  }
  (void)api::parse_tokenize_request(*body);
  return 0;
}
