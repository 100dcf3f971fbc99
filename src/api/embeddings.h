// The answer of /v1/embeddings. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "api/openai.h"
#include "base/result.h"

namespace tandem::api {

// `vectors`: one for each prompt, of unit length. With `dimensions` the first so many values, made
// unit length again (as models trained with nested embeddings want it). Errors: 400 when the
// model's width is less than `dimensions`; 500 "embedding_not_finite".
Result<std::string> embeddings_body(const ApiRequest& request, const std::string& model,
                                    std::vector<std::vector<float>> vectors, int64_t prompt_tokens);

// RFC 4648, with padding.
std::string base64(std::string_view bytes);

}  // namespace tandem::api
