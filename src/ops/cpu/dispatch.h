// Chooses the instruction set once, at start.
#pragma once

#include <string_view>

#include "base/result.h"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {

std::string_view isa_name(Isa isa);

// The highest level this machine can run.
Isa machine_isa();

// The table of one level, whatever the machine: for tests, which first compare with machine_isa().
const Kernels& kernels_for(Isa isa);

// The machine's level, or the one that the environment variable TANDEM_ISA (scalar, avx2, avx512 or
// amx) asks for. Errors (400 "unsupported_isa"): a level the machine lacks, or a name that is none
// of these.
Result<const Kernels*> select_kernels();
Result<const Kernels*> select_kernels(std::string_view requested);  // empty: the machine's level

}  // namespace tandem::ops::cpu
