// What goes over a data stream of the TCP transport. Little-endian, fixed sizes.
//
//   server: CHALLENGE {magic, version, nonce}
//   client: ATTACH {magic, version, epoch of the exposed memory, peer id, nonce, proof}
//   server: WELCOME {magic, refusal, proof}
//   client: REQUEST {magic, count, view, id, bytes} and count times {offset, bytes}, over and over
//   server: RESPONSE {magic, refusal, id, bytes} and the bytes, in the requests' order
//
// Proofs are HMAC-SHA256 under the key that the control connection's ends have derived. Requests
// are answered in order; several may be on their way. A refused request is answered without bytes.
//
// `view`: 0, or the form in which the pieces at the offsets are wanted (SourceViews); the bytes are
// then those that travel. Builds from before there were views say 0 in its place, and take another
// number for a count over their bound; they are not asked, since their HELLO offers none.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/transfer/transport.h"

namespace tandem::kv::tcp {

inline constexpr uint16_t kWireVersion = 1;
inline constexpr size_t kNonceBytes = 16;
inline constexpr size_t kIdBytes = 16;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kChallengeBytes = 8 + kNonceBytes;
inline constexpr size_t kAttachBytes = 16 + kIdBytes + kNonceBytes + kProofBytes;
inline constexpr size_t kWelcomeBytes = 8 + kProofBytes;
inline constexpr size_t kHeaderBytes = 24;  // of requests and responses
inline constexpr size_t kRangeBytes = 16;
inline constexpr uint32_t kMaxRanges = 4096;
inline constexpr uint64_t kMaxRequestBytes = uint64_t{64} << 20;
inline constexpr size_t kDescriptorBytes = 20;

enum class Refusal : uint32_t { kNone = 0, kEpoch, kUnknownPeer, kTooMany, kOutside, kView };

struct Address {  // the descriptor; the host is the control connection's
  uint16_t port = 0;
  uint64_t epoch = 0;
  uint64_t exposed = 0;  // bytes
};
std::string encode_address(const Address& address);
std::optional<Address> decode_address(std::string_view bytes);

std::string encode_challenge(std::string_view nonce);
std::optional<std::string> decode_challenge(std::string_view bytes);  // the nonce

struct Attach {
  uint64_t epoch = 0;
  std::string id;     // kIdBytes
  std::string nonce;  // kNonceBytes
  std::string proof;
};
std::string attach_proof(const std::string& key, std::string_view server_nonce,
                         const Attach& attach);
std::string encode_attach(const Attach& attach);
std::optional<Attach> decode_attach(std::string_view bytes);

struct Welcome {
  Refusal refusal = Refusal::kNone;
  std::string proof;
};
std::string welcome_proof(const std::string& key, std::string_view server_nonce,
                          std::string_view client_nonce);
std::string encode_welcome(const Welcome& welcome);
std::optional<Welcome> decode_welcome(std::string_view bytes);

struct Range {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
struct RequestHeader {
  uint32_t count = 0;
  uint16_t view = 0;
  uint64_t id = 0;
  uint64_t bytes = 0;  // of all ranges
};
// All through the same view; at most kMaxRanges.
std::string encode_request(uint64_t id, std::span<const Read> reads);
// Null: not a request, or over a bound.
std::optional<RequestHeader> decode_request_header(std::string_view bytes);
// `bytes` are header.count * kRangeBytes. Null: the sizes are zero or not what the header says.
std::optional<std::vector<Range>> decode_ranges(const RequestHeader& header,
                                                std::string_view bytes);
bool inside(const std::vector<Range>& ranges, uint64_t exposed);
// Each range is one piece of that view, whole, aligned, and all of it exposed.
bool inside(const std::vector<Range>& ranges, uint64_t exposed, const SourceViews::Shape& view);

struct ResponseHeader {
  Refusal refusal = Refusal::kNone;
  uint64_t id = 0;
  uint64_t bytes = 0;
};
std::string encode_response_header(const ResponseHeader& header);
std::optional<ResponseHeader> decode_response_header(std::string_view bytes);

}  // namespace tandem::kv::tcp
