// Passing an open file over a connected Unix socket, with one byte of its own.
#pragma once

#include "base/result.h"

namespace tandem::kv {

// Error 502 "connect_failed".
Status send_file(int socket, int file);
// The received file is the caller's. Blocks when nothing has arrived. Errors: 502
// "connect_failed", "handoff_protocol".
Result<int> receive_file(int socket);

}  // namespace tandem::kv
