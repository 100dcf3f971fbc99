// A transport module for tests, linked in: reads within the process, made by poll.
#pragma once

#include "kv/transfer/transport_abi.h"

namespace tandem::kv {

const tandem_transport_v1* memory_module();

}  // namespace tandem::kv
