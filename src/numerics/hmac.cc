#include "numerics/hmac.h"

#include <cstdlib>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace tandem::numerics {

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string out(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  // An empty key needs a non-null pointer.
  HMAC(EVP_sha256(), key.empty() ? "" : key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(),
       reinterpret_cast<unsigned char*>(out.data()), &size);
  out.resize(size);
  return out;
}

bool equal_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_bytes(size_t count) {
  std::string out(count, '\0');
  // Without randomness there are no safe ids or nonces to go on with.
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(count)) != 1)
    std::abort();
  return out;
}

std::string random_hex(size_t digits) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out = random_bytes(digits);
  for (char& c : out) c = kDigits[static_cast<unsigned char>(c) & 15];
  return out;
}

}  // namespace tandem::numerics
