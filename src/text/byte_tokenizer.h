// A tokenizer without a vocabulary file, for engines that only pretend and for tests: every byte is
// a token; <|start|> is 256 and <|end|> 257.
#pragma once

#include "text/tokenizer_spec.h"

namespace tandem::text {

TokenizerSpec byte_tokenizer_spec();

}  // namespace tandem::text
