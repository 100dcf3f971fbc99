#include "protocol/content_id.h"

#include <algorithm>

#include "numerics/digest.h"

namespace tandem::protocol {
namespace {

// Every field is preceded by a one-byte type and its length, so no two field lists digest the same
// bytes.
enum class Field : uint8_t {
  kLineage = 1,
  kBlockTokens = 2,
  kSalt = 3,
  kParent = 4,
  kTokens = 5,
  kExtra = 6
};

class Digester {
 public:
  void field(Field type, std::span<const std::byte> bytes) {
    number(static_cast<uint64_t>(type), 1);
    number(bytes.size(), 8);
    sha_.update(bytes);
  }
  void field(Field type, std::string_view text) { field(type, std::as_bytes(std::span(text))); }
  void number(uint64_t value, int count) {
    std::array<std::byte, 8> bytes{};
    for (int i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
    sha_.update(std::span(bytes).first(count));
  }
  ContentId finish() { return ContentId{sha_.finish()}; }

 private:
  numerics::Sha256 sha_;
};

}  // namespace

std::string ContentId::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(64);
  for (const std::byte byte : bytes) {
    out += kDigits[std::to_integer<int>(byte) >> 4];
    out += kDigits[std::to_integer<int>(byte) & 15];
  }
  return out;
}

ContentId root_content_id(std::string_view lineage, int32_t block_tokens, std::string_view salt) {
  Digester digester;
  digester.field(Field::kLineage, lineage);
  digester.field(Field::kBlockTokens, std::to_string(block_tokens));
  digester.field(Field::kSalt, salt);
  return digester.finish();
}

ContentId next_content_id(const ContentId& parent, std::span<const int32_t> tokens,
                          std::span<const Extra> extras) {
  Digester digester;
  digester.field(Field::kParent, parent.bytes);
  // Tokens as little-endian 32-bit words, whatever the machine.
  std::vector<std::byte> words(tokens.size() * 4);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto value = static_cast<uint32_t>(tokens[i]);
    for (int b = 0; b < 4; ++b) words[i * 4 + b] = static_cast<std::byte>(value >> (8 * b));
  }
  digester.field(Field::kTokens, words);
  for (const Extra& extra : extras) {
    digester.number(static_cast<uint64_t>(extra.kind), 1);
    digester.field(Field::kExtra, extra.value);
  }
  return digester.finish();
}

std::vector<ContentId> content_ids(const ContentId& root, std::span<const int32_t> tokens,
                                   int32_t block_tokens, std::span<const Extra> extras) {
  std::vector<ContentId> ids;
  const size_t block = static_cast<size_t>(block_tokens);
  ids.reserve(tokens.size() / block);
  ContentId parent = root;
  for (size_t at = 0; at + block <= tokens.size(); at += block) {
    parent = next_content_id(parent, tokens.subspan(at, block), extras);
    ids.push_back(parent);
  }
  return ids;
}

}  // namespace tandem::protocol
