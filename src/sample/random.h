// Counter-based random numbers: a draw depends on what it is for, never on what was drawn before.
#pragma once

#include <cstdint>

namespace tandem::sample {

// Uniform in [0, 1), 53 bits, from the counter-based generator Philox4x32-10 (J. Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC'11): key = seed, counter = (position, choice,
// stream).
double uniform(uint64_t seed, uint32_t choice, int64_t position, uint32_t stream = 0);

// The generator itself, for its test vectors.
struct Philox {
  uint32_t word[4];
};
Philox philox4x32_10(const uint32_t (&counter)[4], const uint32_t (&key)[2]);

}  // namespace tandem::sample
