#include "kv/transfer/tcp_wire.h"

#include "numerics/hmac.h"

namespace tandem::kv::tcp {
namespace {

constexpr uint32_t kChallenge = 0x43444454;  // "TDDC"
constexpr uint32_t kAttach = 0x41444454;     // "TDDA"
constexpr uint32_t kWelcome = 0x57444454;    // "TDDW"
constexpr uint32_t kRequest = 0x51524454;    // "TDRQ"
constexpr uint32_t kResponse = 0x53524454;   // "TDRS"

void put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

// Reads fixed fields off the front; callers have checked the size.
struct Fields {
  std::string_view rest;
  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(rest[i]);
    rest.remove_prefix(bytes);
    return value;
  }
  std::string text(size_t bytes) {
    std::string out(rest.substr(0, bytes));
    rest.remove_prefix(bytes);
    return out;
  }
  Refusal refusal() { return static_cast<Refusal>(number(4)); }
};

bool known(Refusal refusal) { return refusal <= Refusal::kView; }

}  // namespace

std::string encode_address(const Address& address) {
  std::string out;
  put(out, kWireVersion, 2), put(out, address.port, 2);
  put(out, address.epoch, 8), put(out, address.exposed, 8);
  return out;
}

std::optional<Address> decode_address(std::string_view bytes) {
  if (bytes.size() != kDescriptorBytes) return std::nullopt;
  Fields in{bytes};
  if (in.number(2) != kWireVersion) return std::nullopt;
  Address out;
  out.port = static_cast<uint16_t>(in.number(2));
  out.epoch = in.number(8);
  out.exposed = in.number(8);
  return out;
}

std::string encode_challenge(std::string_view nonce) {
  std::string out;
  put(out, kChallenge, 4), put(out, kWireVersion, 4);
  return out.append(nonce);
}

std::optional<std::string> decode_challenge(std::string_view bytes) {
  if (bytes.size() != kChallengeBytes) return std::nullopt;
  Fields in{bytes};
  if (in.number(4) != kChallenge || in.number(4) != kWireVersion) return std::nullopt;
  return in.text(kNonceBytes);
}

std::string attach_proof(const std::string& key, std::string_view server_nonce,
                         const Attach& attach) {
  std::string said = "attach";
  said.append(server_nonce).append(attach.nonce).append(attach.id);
  put(said, attach.epoch, 8);
  return numerics::hmac_sha256(key, said);
}

std::string encode_attach(const Attach& attach) {
  std::string out;
  put(out, kAttach, 4), put(out, kWireVersion, 4), put(out, attach.epoch, 8);
  return out.append(attach.id).append(attach.nonce).append(attach.proof);
}

std::optional<Attach> decode_attach(std::string_view bytes) {
  if (bytes.size() != kAttachBytes) return std::nullopt;
  Fields in{bytes};
  if (in.number(4) != kAttach || in.number(4) != kWireVersion) return std::nullopt;
  Attach out;
  out.epoch = in.number(8);
  out.id = in.text(kIdBytes);
  out.nonce = in.text(kNonceBytes);
  out.proof = in.text(kProofBytes);
  return out;
}

std::string welcome_proof(const std::string& key, std::string_view server_nonce,
                          std::string_view client_nonce) {
  return numerics::hmac_sha256(key,
                               std::string("welcome").append(client_nonce).append(server_nonce));
}

std::string encode_welcome(const Welcome& welcome) {
  std::string out;
  put(out, kWelcome, 4), put(out, static_cast<uint32_t>(welcome.refusal), 4);
  std::string proof = welcome.proof;
  proof.resize(kProofBytes);
  return out + proof;
}

std::optional<Welcome> decode_welcome(std::string_view bytes) {
  if (bytes.size() != kWelcomeBytes) return std::nullopt;
  Fields in{bytes};
  if (in.number(4) != kWelcome) return std::nullopt;
  Welcome out;
  out.refusal = in.refusal();
  out.proof = in.text(kProofBytes);
  if (!known(out.refusal)) return std::nullopt;
  return out;
}

std::string encode_request(uint64_t id, std::span<const Read> reads) {
  std::string out;
  out.reserve(kHeaderBytes + reads.size() * kRangeBytes);
  uint64_t total = 0;
  for (const Read& read : reads) total += read.bytes;
  put(out, kRequest, 4), put(out, reads.size(), 2);
  put(out, reads.empty() ? 0 : reads.front().view, 2), put(out, id, 8), put(out, total, 8);
  for (const Read& read : reads) put(out, read.offset, 8), put(out, read.bytes, 8);
  return out;
}

std::optional<RequestHeader> decode_request_header(std::string_view bytes) {
  if (bytes.size() != kHeaderBytes) return std::nullopt;
  Fields in{bytes};
  if (in.number(4) != kRequest) return std::nullopt;
  RequestHeader out;
  out.count = static_cast<uint32_t>(in.number(2));
  out.view = static_cast<uint16_t>(in.number(2));
  out.id = in.number(8);
  out.bytes = in.number(8);
  if (out.count == 0 || out.count > kMaxRanges || out.bytes == 0 || out.bytes > kMaxRequestBytes)
    return std::nullopt;
  return out;
}

std::optional<std::vector<Range>> decode_ranges(const RequestHeader& header,
                                                std::string_view bytes) {
  if (bytes.size() != header.count * kRangeBytes) return std::nullopt;
  Fields in{bytes};
  std::vector<Range> out(header.count);
  uint64_t total = 0;
  for (Range& range : out) {
    range.offset = in.number(8);
    range.bytes = in.number(8);
    if (range.bytes == 0 || range.bytes > header.bytes - total) return std::nullopt;
    total += range.bytes;
  }
  if (total != header.bytes) return std::nullopt;
  return out;
}

bool inside(const std::vector<Range>& ranges, uint64_t exposed) {
  for (const Range& range : ranges) {
    if (range.offset > exposed || range.bytes > exposed - range.offset) return false;
  }
  return true;
}

bool inside(const std::vector<Range>& ranges, uint64_t exposed, const SourceViews::Shape& view) {
  for (const Range& range : ranges) {
    if (range.bytes != view.bytes || range.offset % SourceViews::kAlignment != 0 ||
        range.offset > exposed || view.source_bytes > exposed - range.offset) {
      return false;
    }
  }
  return true;
}

std::string encode_response_header(const ResponseHeader& header) {
  std::string out;
  put(out, kResponse, 4), put(out, static_cast<uint32_t>(header.refusal), 4);
  put(out, header.id, 8), put(out, header.bytes, 8);
  return out;
}

std::optional<ResponseHeader> decode_response_header(std::string_view bytes) {
  if (bytes.size() != kHeaderBytes) return std::nullopt;
  Fields in{bytes};
  if (in.number(4) != kResponse) return std::nullopt;
  ResponseHeader out;
  out.refusal = in.refusal();
  out.id = in.number(8);
  out.bytes = in.number(8);
  if (!known(out.refusal) || out.bytes > kMaxRequestBytes) return std::nullopt;
  return out;
}

}  // namespace tandem::kv::tcp
