// PromptPrefix: a request's first prompt as the keys by which caches are looked up: of token blocks
// where the router knows the tokens, of bytes where it does not.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai.h"
#include "router/connectors/facts.h"
#include "router/prefix/prefix_holders.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::router {

struct PromptPrefix {
  std::vector<PromptKeys> kinds;  // one for each block size that the model's workers have

  // The first kind: what affinity and the policy count in.
  std::span<const BlockKey> chain() const {
    return kinds.empty() ? std::span<const BlockKey>() : std::span(kinds[0].keys);
  }
  int32_t block_tokens() const { return kinds.empty() ? 16 : kinds[0].block_tokens; }
  // Of a request's tokens those that the chain does not tell: all of a short prompt that is known
  // by its bytes, the end of a long one, the others of a batch. Less than a block is nothing,
  // unless it is all there is.
  int64_t beyond_chain(int64_t prompt_tokens) const;
  bool of_bytes() const { return kinds.empty() || kinds[0].of_bytes; }
};

// How a model's prompts are named.
struct PrefixRule {
  PrefixHasher hasher{0};
  std::string model;
  std::string adapter = {};
  std::vector<int32_t> block_tokens = {};  // of its workers; empty: prompts are known by bytes only
  // Of another engine's model, if the operator gave them: text becomes tokens as in the engine.
  std::shared_ptr<const text::Tokenizer> tokenizer = {};
  std::shared_ptr<const text::ChatTemplate> chat_template = {};
};

// `salt`: as events spell it; empty: none.
PromptPrefix prefix_of_tokens(const PrefixRule& rule, std::span<const int32_t> tokens,
                              std::string_view salt);

// Of a body that is another engine's business: by tokens when its prompt is ids or the rule has a
// tokenizer, else by the facts' chain of bytes. `endpoint`: how a tokenizer would read it.
PromptPrefix prefix_of_body(const PrefixRule& rule, std::optional<api::Endpoint> endpoint,
                            const std::string& body, const BodyFacts& facts);

}  // namespace tandem::router
