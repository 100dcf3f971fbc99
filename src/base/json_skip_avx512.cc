#include <immintrin.h>

#include "base/json_skip_blocks.h"

namespace tandem {

namespace {

class Block {
 public:
  explicit Block(const char* at) : bytes_(_mm512_loadu_si512(at)) {}

  uint64_t equals(char c) const { return _mm512_cmpeq_epi8_mask(bytes_, _mm512_set1_epi8(c)); }
  uint64_t below(char c) const { return _mm512_cmplt_epu8_mask(bytes_, _mm512_set1_epi8(c)); }

  // By the low half of the byte; `r` has that of `b`.
  uint64_t simple() const {
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(-1, -1, 'b', -1, 't', -1, 'f', -1, -1, -1, -1, -1, -1, -1, 'n', '/'));
    return _mm512_cmpeq_epi8_mask(_mm512_shuffle_epi8(table, bytes_), bytes_) | equals('r');
  }
  // By a table of the first 128 characters, 64 a register.
  uint64_t hex() const {
    const __m512i digits = _mm512_maskz_set1_epi8(uint64_t{0x3ff} << '0', -1);
    const __m512i letters = _mm512_maskz_set1_epi8(uint64_t{0x7e} | uint64_t{0x7e} << 32, -1);
    return _mm512_movepi8_mask(_mm512_permutex2var_epi8(digits, bytes_, letters)) &
           ~_mm512_movepi8_mask(bytes_);
  }
  Block lower() const { return Block(_mm512_or_si512(bytes_, _mm512_set1_epi8(0x20))); }

 private:
  explicit Block(__m512i bytes) : bytes_(bytes) {}

  __m512i bytes_;
};

}  // namespace

const JsonSkip kJsonSkipAvx512{skip_string_blocks<Block>, skip_integer_blocks<Block>};

}  // namespace tandem
