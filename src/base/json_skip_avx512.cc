#include <immintrin.h>

#include "base/json_skip_blocks.h"

namespace tandem {

namespace {

class Block {
 public:
  explicit Block(const char* at) : bytes_(_mm512_loadu_si512(at)) {}

  uint64_t equals(char c) const { return _mm512_cmpeq_epi8_mask(bytes_, _mm512_set1_epi8(c)); }
  uint64_t below(char c) const { return _mm512_cmplt_epu8_mask(bytes_, _mm512_set1_epi8(c)); }

 private:
  __m512i bytes_;
};

}  // namespace

const JsonSkip kJsonSkipAvx512{skip_string_blocks<Block>, skip_integer_blocks<Block>};

}  // namespace tandem
