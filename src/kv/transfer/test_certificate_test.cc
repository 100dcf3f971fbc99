#include "kv/transfer/test_certificate.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

namespace tandem::kv {
namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* value) const {
    Free(value);
  }
};

bool add_extension(X509* certificate, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, id, value));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool write_files(const TlsFiles& files, EVP_PKEY* key, X509* certificate) {
  const std::unique_ptr<FILE, Freed<fclose>> to(std::fopen(files.certificate.c_str(), "w"));
  const std::unique_ptr<FILE, Freed<fclose>> secret(std::fopen(files.key.c_str(), "w"));
  return to && secret && PEM_write_X509(to.get(), certificate) == 1 &&
         PEM_write_PrivateKey(secret.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1;
}

TEST(TlsContext, FilesThatCannotBeUsedAreNamed) {
  const TlsFiles good = make_certificate("good");
  const TlsFiles other = make_certificate("other");
  EXPECT_TRUE(TlsContext::load(good));
  for (int field = 0; field < 4; ++field) {
    TlsFiles bad = good;
    (field == 0   ? bad.certificate
     : field == 1 ? bad.key
     : field == 2 ? bad.authorities
                  : bad.key) = field == 3 ? other.key : "/nowhere/file.pem";
    const auto loaded = TlsContext::load(bad);
    ASSERT_FALSE(loaded) << field;
    EXPECT_NE(loaded.error().message.find(field == 3 ? other.key : "/nowhere/file.pem"),
              std::string::npos);
    EXPECT_EQ(loaded.error().code, "tls_files");
  }
  EXPECT_FALSE(TlsContext::load({good.certificate, good.key, ""}));
}

}  // namespace

TlsFiles make_certificate(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "tandem-tls-" + std::to_string(getpid());
  const std::string path = folder + "-" + name;
  const TlsFiles files{path + ".pem", path + ".key", path + ".pem"};
  const std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>> key(EVP_EC_gen("P-256"));
  const std::unique_ptr<X509, Freed<X509_free>> certificate(X509_new());
  if (!key || !certificate) return {};
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 86400);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  const bool made = add_extension(certificate.get(), NID_basic_constraints, "critical,CA:TRUE") &&
                    add_extension(certificate.get(), NID_subject_alt_name, "IP:127.0.0.1") &&
                    X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0 &&
                    write_files(files, key.get(), certificate.get());
  return made ? files : TlsFiles{};
}

const TlsContext* test_tls() {
  // A child process of the tests (exposer_process.h) believes its parent's certificate.
  static const std::unique_ptr<TlsContext> context = [] {
    constexpr const char* kVariable = "TANDEM_TEST_CERTIFICATE";
    TlsFiles files;
    if (const char* path = std::getenv(kVariable); path != nullptr) {
      const std::string base = path;
      files = {base + ".pem", base + ".key", base + ".pem"};
    } else {
      files = make_certificate("shared");
      if (files.empty()) return std::unique_ptr<TlsContext>();
      setenv(kVariable, files.certificate.substr(0, files.certificate.size() - 4).c_str(), 1);
    }
    auto loaded = TlsContext::load(files);
    return loaded ? std::move(*loaded) : std::unique_ptr<TlsContext>();
  }();
  return context.get();
}

}  // namespace tandem::kv
