#include "numerics/digest.h"

#include <openssl/evp.h>

#define XXH_INLINE_ALL
#include <cstdio>
#include <cstdlib>

#include <xxhash.h>

namespace tandem::numerics {
namespace {

// SHA-256 from libcrypto fails only when the library is broken or memory is gone; neither has a
// per-request answer.
void require(bool ok) {
  if (!ok) {
    std::fputs("tandem: libcrypto cannot compute SHA-256\n", stderr);
    std::abort();
  }
}

// Fetched once: EVP_sha256() looks the provider up, under locks, at every start of a message.
const EVP_MD* sha256_method() {
  static const EVP_MD* const kMethod = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  require(kMethod != nullptr);
  return kMethod;
}

}  // namespace

struct Sha256::Context {
  Context() : evp(EVP_MD_CTX_new()) {
    require(evp != nullptr);
    start();
  }
  ~Context() { EVP_MD_CTX_free(evp); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  void start() { require(EVP_DigestInit_ex(evp, sha256_method(), nullptr) == 1); }

  EVP_MD_CTX* evp;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

Digest Sha256::finish() {
  Digest digest;
  unsigned int size = 0;
  require(EVP_DigestFinal_ex(context_->evp, reinterpret_cast<unsigned char*>(digest.data()),
                             &size) == 1);
  require(size == digest.size());
  context_->start();
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

uint64_t xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string to_hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(digest.size() * 2);
  for (const std::byte byte : digest) {
    text.push_back(kDigits[std::to_integer<unsigned>(byte) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(byte) & 15]);
  }
  return text;
}

std::optional<Digest> from_hex(std::string_view text) {
  const auto value_of = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  Digest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = value_of(text[2 * i]);
    const int low = value_of(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest[i] = static_cast<std::byte>(high * 16 + low);
  }
  return digest;
}

}  // namespace tandem::numerics
