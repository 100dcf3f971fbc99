// Reads a file that may be compressed with zstd (by its first bytes).
#pragma once

#include <string>

#include "base/result.h"

namespace tandem::cli {

// Errors: 404 "file_not_found", 400 "bad_file" when it is damaged or larger than 1 GiB.
Result<std::string> read_trace_file(const std::string& path);

}  // namespace tandem::cli
