// The text of a planned part: common short words, each about one token of usual vocabularies, or
// token ids. The same seed gives the same text, and a shorter part is the beginning of a longer
// one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "loadgen/dataset.h"

namespace tandem::loadgen {

// How a server's tokenizer counts, found by asking it (client/driver.h): the words of a part are
// chosen so that it has about as many tokens as planned.
struct WordRate {
  double tokens_per_word = 1;
  double tokens_per_request = 0;  // the chat template's own
};

// `words` words, each with a space behind it.
void append_words(std::string& out, uint64_t seed, size_t words);
size_t words_for(int32_t tokens, double tokens_per_word);

// Ids in [least, least + count).
void append_token_ids(std::vector<uint32_t>& out, uint64_t seed, size_t tokens, uint32_t least,
                      uint32_t count);

}  // namespace tandem::loadgen
