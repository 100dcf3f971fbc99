// A request body of any bytes, for every endpoint: refused with a 400, or read and answered.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "api/ollama.h"
#include "api/openai.h"
#include "api/responses.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const auto body = parse_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!body) return 0;
  for (const auto endpoint :
       {api::Endpoint::kChatCompletions, api::Endpoint::kCompletions, api::Endpoint::kEmbeddings,
        api::Endpoint::kTokenize, api::Endpoint::kDetokenize, api::Endpoint::kResponses,
        api::Endpoint::kInputTokens, api::Endpoint::kMessages, api::Endpoint::kCountTokens}) {
    const auto request = api::parse_request(endpoint, *body, true);
    if (!request) {
      if (request.error().status != 400 || request.error().message.empty()) std::abort();
      continue;
    }
    if (request->envelope) {
      const JsonValue json = api::envelope_to_json(*request->envelope);
      if (api::envelope_to_json(*api::parse_envelope(json)).dump() != json.dump()) std::abort();
    }
    const size_t prompts = std::max<size_t>(request->prompts.size(), 1);
    const bool echo = request->echo;
    if (echo || prompts > 4) continue;  // echo needs a tokenizer
    if (api::only_counts(endpoint)) continue;
    const auto made = api::make_renderer(
        *request, {"id", 0, request->model, "fp", std::vector<int64_t>(prompts, 1), nullptr});
    api::ReplyRenderer& renderer = *made;
    (void)renderer.begin();
    for (size_t prompt = 0; prompt < prompts; ++prompt) {
      for (int32_t choice = 0; choice < request->sampling.n; ++choice) {
        protocol::FinishEvent finish;
        finish.choice = choice;
        (void)renderer.render(prompt, finish);
      }
    }
    if (!renderer.finished()) std::abort();
  }
  for (const auto route : {api::OllamaRoute::kChat, api::OllamaRoute::kGenerate,
                           api::OllamaRoute::kEmbed, api::OllamaRoute::kEmbedding}) {
    const auto request = api::parse_ollama(route, *body);
    if (!request) {
      if (request.error().status != 400 || request.error().message.empty()) std::abort();
      continue;
    }
    api::OllamaReply reply(*request, "now");
    (void)reply.line(std::string_view(reinterpret_cast<const char*>(data), size), 0);
    (void)reply.whole(std::string_view(reinterpret_cast<const char*>(data), size), 0);
    (void)reply.loaded();
  }
  return 0;
}
