#include "kv/transfer/tls_context.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace tandem::kv {

Result<std::unique_ptr<TlsContext>> TlsContext::load(const TlsFiles& files) {
  std::unique_ptr<TlsContext> made(new TlsContext);
  const auto bad = [](const std::string& what) {
    return make_error(500, "tls_files", "TLS between workers: " + what + ".");
  };
  if (files.certificate.empty() || files.key.empty() || files.authorities.empty())
    return bad("a certificate, its key and the authorities are needed together");
  made->context_ = SSL_CTX_new(TLS_method());
  if (made->context_ == nullptr) return bad("OpenSSL cannot be used");
  SSL_CTX_set_min_proto_version(made->context_, TLS1_3_VERSION);
  SSL_CTX_set_verify(made->context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_mode(made->context_,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Either end may be the dialing one, whoever's certificate names client or server use.
  SSL_CTX_set_purpose(made->context_, X509_PURPOSE_ANY);
  if (SSL_CTX_use_certificate_chain_file(made->context_, files.certificate.c_str()) != 1)
    return bad("the certificate " + files.certificate + " cannot be read");
  if (SSL_CTX_use_PrivateKey_file(made->context_, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(made->context_) != 1)
    return bad("the key " + files.key + " cannot be read or is another certificate's");
  if (SSL_CTX_load_verify_locations(made->context_, files.authorities.c_str(), nullptr) != 1)
    return bad("the authorities in " + files.authorities + " cannot be read");
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

void require_host(void* ssl, const std::string& host) {
  X509_VERIFY_PARAM* wanted = SSL_get0_param(static_cast<SSL*>(ssl));
  in6_addr ignored{};
  if (inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
      inet_pton(AF_INET6, host.c_str(), &ignored) == 1) {
    X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str());
  } else {
    X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), host.size());
    SSL_set_tlsext_host_name(static_cast<SSL*>(ssl), host.c_str());
  }
}

}  // namespace tandem::kv
