#include <immintrin.h>

#include "base/json_skip_blocks.h"

namespace tandem {

namespace {

class Block {
 public:
  explicit Block(const char* at)
      : low_(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))),
        high_(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32))) {}

  uint64_t equals(char c) const {
    const __m256i wanted = _mm256_set1_epi8(c);
    return join(_mm256_cmpeq_epi8(low_, wanted), _mm256_cmpeq_epi8(high_, wanted));
  }

  // x <= c - 1 as min(x, c - 1) == x: there is no unsigned comparison of bytes.
  uint64_t below(char c) const {
    const __m256i most = _mm256_set1_epi8(static_cast<char>(c - 1));
    return join(_mm256_cmpeq_epi8(_mm256_min_epu8(low_, most), low_),
                _mm256_cmpeq_epi8(_mm256_min_epu8(high_, most), high_));
  }

  // By the low half of the byte; `r` has that of `b`.
  uint64_t simple() const {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, -1, 'b', -1, 't', -1, 'f', -1, -1, -1, -1, -1, -1, -1, 'n', '/'));
    return join(_mm256_cmpeq_epi8(_mm256_shuffle_epi8(table, low_), low_),
                _mm256_cmpeq_epi8(_mm256_shuffle_epi8(table, high_), high_)) |
           equals('r');
  }
  uint64_t hex() const {
    const Block letters = lower();
    return (below('9' + 1) & ~below('0')) | (letters.below('f' + 1) & ~letters.below('a'));
  }
  Block lower() const {
    const __m256i bit = _mm256_set1_epi8(0x20);
    return {_mm256_or_si256(low_, bit), _mm256_or_si256(high_, bit)};
  }

 private:
  Block(__m256i low, __m256i high) : low_(low), high_(high) {}
  static uint64_t join(__m256i low, __m256i high) {
    return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
           static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
  }

  __m256i low_;
  __m256i high_;
};

}  // namespace

const JsonSkip kJsonSkipAvx2{skip_string_blocks<Block>, skip_integer_blocks<Block>};

}  // namespace tandem
