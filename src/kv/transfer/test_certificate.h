// A certificate for 127.0.0.1 that signs itself, made when it is first asked for. For tests.
#pragma once

#include "kv/transfer/tls_context.h"

namespace tandem::kv {

// Files under the tests' temporary folder; every field empty when none could be made. `name`: one
// certificate for each.
TlsFiles make_certificate(const std::string& name);
// Where every process of one test run finds the same; null when none could be made.
const TlsContext* test_tls();

}  // namespace tandem::kv
