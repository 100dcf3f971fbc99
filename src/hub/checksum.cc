#include "hub/checksum.h"

#include <array>

#include <openssl/evp.h>

namespace tandem::hub {

struct Checksum::Context {
  explicit Context(const EVP_MD* kind) : state(EVP_MD_CTX_new()) {
    EVP_DigestInit_ex(state, kind, nullptr);
  }
  ~Context() { EVP_MD_CTX_free(state); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  EVP_MD_CTX* state;
};

Checksum::Checksum(std::unique_ptr<Context> context) : context_(std::move(context)) {}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

Checksum Checksum::sha256() { return Checksum(std::make_unique<Context>(EVP_sha256())); }

Checksum Checksum::git_blob(uint64_t size) {
  Checksum made(std::make_unique<Context>(EVP_sha1()));
  const std::string head = "blob " + std::to_string(size);
  made.update({head.c_str(), head.size() + 1});  // with the zero byte
  return made;
}

void Checksum::update(std::string_view bytes) {
  EVP_DigestUpdate(context_->state, bytes.data(), bytes.size());
}

std::string Checksum::hex() {
  static constexpr char kHex[] = "0123456789abcdef";
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  EVP_DigestFinal_ex(context_->state, digest.data(), &size);
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    text += kHex[digest[i] >> 4];
    text += kHex[digest[i] & 15];
  }
  return text;
}

}  // namespace tandem::hub
