#include "sample/random.h"

#include <algorithm>
#include <iterator>

namespace tandem::sample {

Philox philox4x32_10(const uint32_t (&counter)[4], const uint32_t (&key)[2]) {
  uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  uint32_t k[2] = {key[0], key[1]};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    std::copy(std::begin(next), std::end(next), std::begin(c));
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

double uniform(uint64_t seed, uint32_t choice, int64_t position, uint32_t stream) {
  const auto at = static_cast<uint64_t>(position);
  const Philox random =
      philox4x32_10({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), choice, stream},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = static_cast<uint64_t>(random.word[0]) << 32 | random.word[1];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace tandem::sample
