// What is made up afresh for each attempt.
#include <algorithm>
#include <limits>

#include "router/connectors/leg_body.h"

namespace tandem::router {

namespace {

std::string hex(uint64_t bits, int digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(static_cast<size_t>(digits), '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, bits >>= 4)
    *digit = kDigits[bits & 15];
  return text;
}

// A random UUID (version 4).
std::string uuid(uint64_t high, uint64_t low) {
  high = (high & ~uint64_t{0xf000}) | 0x4000;
  low = (low & (~uint64_t{0} >> 2)) | uint64_t{1} << 63;
  return hex(high >> 32, 8) + "-" + hex(high >> 16, 4) + "-" + hex(high, 4) + "-" +
         hex(low >> 48, 4) + "-" + hex(low, 12);
}

int64_t room(uint64_t bits, int64_t dp_size, int64_t rank) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() - 1;
  dp_size = std::max<int64_t>(dp_size, 1);
  rank = std::clamp<int64_t>(rank, 0, dp_size - 1);
  auto number = static_cast<int64_t>(bits >> 1);
  number = std::min(number, kMost - dp_size);
  return number - number % dp_size + rank;
}

}  // namespace

int64_t GlobalIds::next(std::chrono::milliseconds wall) {
  if (wall.count() > milliseconds_) {
    milliseconds_ = wall.count();
    counter_ = 0;
  } else if (++counter_ == 4096) {
    ++milliseconds_;
    counter_ = 0;
  }
  // 2^42 is 2^20 milliseconds: a machine without a clock must stay above it too.
  milliseconds_ = std::max(milliseconds_, int64_t{1} << 20);
  return (milliseconds_ & ((int64_t{1} << 41) - 1)) << 22 | machine_ << 12 | counter_;
}

std::string pair_request_id(const SideAddress& prefill, const SideAddress& decode,
                            const std::string& id) {
  const auto text = [](const SideAddress& side) {
    return "host:" + side.host + ",handshake:" + std::to_string(side.handshake_port) +
           ",notify:" + std::to_string(side.notify_port);
  };
  return "___prefill_addr_" + text(prefill) + "___decode_addr_" + text(decode) + "_" + id;
}

bool may_pair(const Connector& connector, const BodyFacts& facts) {
  if (connector.order == LegOrder::kAlone || !generates(facts.api)) return false;
  if ((connector.pair_apis & api_bit(facts.api)) == 0) return false;
  if (facts.batch > 1 && connector.batch == BatchRule::kAlone) return false;
  if ((facts.n > 1 || facts.best_of > 1) && connector.choices == BatchRule::kAlone) return false;
  return !(facts.prompt_logprobs && connector.prompt_logprobs_alone);
}

size_t batch_size(const Connector& connector, const BodyFacts& facts) {
  if (facts.batch > 1 && connector.batch == BatchRule::kArrays)
    return static_cast<size_t>(facts.batch);
  if (facts.n > 1 && connector.choices == BatchRule::kArrays) return static_cast<size_t>(facts.n);
  return 1;
}

LegValues mint(const Connector& connector, const BodyFacts& facts, const RandomBits& random,
               GlobalIds& global_ids, std::chrono::milliseconds wall, int32_t dp_size,
               int32_t rank) {
  LegValues values;
  if ((connector.mint & kMintRoom) != 0) {
    const size_t count = batch_size(connector, facts);
    for (size_t i = 0; i < count; ++i) values.rooms.push_back(room(random(), dp_size, rank));
  }
  if ((connector.mint & kMintTransferId) != 0)
    values.transfer_id = "xfer-" + uuid(random(), random());
  if ((connector.mint & kMintTxId) != 0) values.transfer_id = "tx-" + uuid(random(), random());
  if ((connector.mint & kMintGlobalId) != 0) values.global_id = global_ids.next(wall);
  if ((connector.mint & kMintRid) != 0 && !facts.own_rid)
    values.rid = hex(random(), 16) + hex(random(), 16);
  return values;
}

}  // namespace tandem::router
