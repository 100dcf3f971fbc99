#include "kv/transfer/transport.h"

#include <string>

namespace tandem::kv {

Error transfer_error(TransferStatus status, std::string_view transport) {
  const std::string through = " (transport " + std::string(transport) + ").";
  switch (status) {
    case TransferStatus::kFull:
      return {503, "transfer_full", "Too many bytes are in flight from this peer" + through};
    case TransferStatus::kLost:
      return {502, "transfer_lost", "The peer went away during the transfer" + through};
    case TransferStatus::kTimeout:
      return {504, "transfer_timeout", "The peer's KV did not arrive in time" + through};
    case TransferStatus::kInvalid:
      return {502, "transfer_invalid", "A read is outside the peer's memory" + through};
    default:
      return {502, "transfer_failed", "The transfer failed" + through};
  }
}

bool reads_fit(std::span<const Read> reads, uint64_t exposed, uint64_t& total, bool views) {
  total = 0;
  for (const Read& read : reads) {
    if (read.into == nullptr || read.bytes == 0 || read.offset > exposed ||
        read.bytes > exposed - read.offset || read.bytes > UINT64_MAX - total ||
        (read.view != 0 && !views)) {
      return false;
    }
    total += read.bytes;
  }
  return total > 0;
}

}  // namespace tandem::kv
