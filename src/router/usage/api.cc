#include "router/usage/api.h"

#include <array>
#include <utility>

namespace tandem::router {

Api api_of_path(std::string_view path) {
  static constexpr std::array<std::pair<std::string_view, Api>, 6> kPaths = {{
      {"/v1/chat/completions", Api::kChat},
      {"/v1/completions", Api::kCompletions},
      {"/v1/responses", Api::kResponses},
      {"/v1/messages", Api::kMessages},
      {"/generate", Api::kGenerate},
      {"/inference/v1/generate", Api::kInference},
  }};
  for (const auto& [known, api] : kPaths) {
    if (path == known) return api;
  }
  return Api::kOther;
}

}  // namespace tandem::router
