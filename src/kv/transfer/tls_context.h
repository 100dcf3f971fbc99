// TlsContext: this worker's certificate and the authorities that it believes, for "tls:" addresses
// and the data streams that belong to them. Both ends show a certificate and check the other's;
// the dialing end also checks that it names the host. Thread-safe once made.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

struct ssl_ctx_st;

namespace tandem::kv {

struct TlsFiles {
  std::string certificate;  // PEM, with the chain
  std::string key;          // PEM
  std::string authorities;  // PEM: who signs workers' certificates
  bool empty() const { return certificate.empty() && key.empty() && authorities.empty(); }
};

class TlsContext {
 public:
  // Error 500 "tls_files" naming the file that cannot be used.
  static Result<std::unique_ptr<TlsContext>> load(const TlsFiles& files);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* get() const { return context_; }

 private:
  TlsContext() = default;
  ssl_ctx_st* context_ = nullptr;
};

// Makes `ssl` (an SSL*) accept only a certificate that names `host`, a name or an address.
void require_host(void* ssl, const std::string& host);

}  // namespace tandem::kv
