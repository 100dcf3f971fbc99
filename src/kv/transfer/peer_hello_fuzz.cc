// What a peer says before it is trusted, and where a request says it is: addresses, HELLO against
// this side's own in both directions, its choice of transports, the shape of its arena, and what it
// says of its memory.
#include <cstdlib>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "kv/transfer/local_transport.h"
#include "kv/transfer/peer_connection.h"
#include "kv/transfer/tcp_transport.h"
#include "numerics/digest.h"
#include "protocol/handoff_frames.h"

namespace {

using namespace tandem;

void require(bool holds) {
  if (!holds) std::abort();
}

void addresses(const std::string& text) {
  const auto address = kv::parse_peer_address(text);
  if (!address) return;
  const auto again = kv::parse_peer_address(address->text());
  require(again && again->kind == address->kind && again->path == address->path &&
          again->host == address->host && again->port == address->port);
}

protocol::HelloFrame own() {
  protocol::HelloFrame hello;
  hello.role = "prefill";
  hello.lineage = "m";
  hello.representation = "p";
  hello.block_tokens = 16;
  hello.kv_dtype = 2;
  hello.layers = 2;
  hello.kv_heads = 3;
  hello.head_dim = 64;
  hello.windows = {0};
  hello.layer_places = {0, 0, 0, 1};
  hello.accepts = 3;
  return hello;
}

void hello(std::string_view payload) {
  const protocol::FrameHeader header{protocol::kHandoffVersion, 1,
                                     static_cast<uint32_t>(payload.size()),
                                     numerics::xxh3(std::as_bytes(std::span(payload)))};
  const auto frame = protocol::decode_frame_payload(header, payload);
  if (!frame) return;
  const auto* theirs = std::get_if<protocol::HelloFrame>(&*frame);
  require(theirs != nullptr);
  static const protocol::HelloFrame mine = own();
  for (const bool they_send : {false, true}) {
    if (!kv::check_compatible(they_send ? *theirs : mine, they_send ? mine : *theirs)) continue;
    require(theirs->layers == mine.layers && theirs->kv_heads == mine.kv_heads &&
            theirs->head_dim == mine.head_dim && theirs->block_tokens == mine.block_tokens &&
            theirs->layer_places == mine.layer_places && theirs->stages.size() == 1 &&
            theirs->lineage == mine.lineage);
  }
  static const auto shared_memory = kv::make_shared_memory_transport({});
  static const auto tcp = kv::make_tcp_transport({});
  static const std::vector<kv::OfferedTransport> offered = {
      {shared_memory.get(), kv::Descriptor{"1"}}, {tcp.get(), kv::Descriptor{"1"}}};
  for (const bool unix_socket : {false, true}) {
    const auto* chosen = kv::choose_transport(offered, theirs->transports, false, unix_socket);
    require(chosen == nullptr ||
            (theirs->transports.find(chosen->transport->name()) != std::string::npos &&
             (unix_socket || !chosen->transport->passes_file())));
  }
  const device::ArenaShape arena{theirs->arena_bytes, theirs->pages_offset, theirs->page_stride,
                                 theirs->page_count};
  if (!device::is_sound(arena) || arena.page_count == 0) return;
  const uint64_t last = arena.pages_offset + (arena.page_count - 1) * arena.page_stride;
  require(last >= arena.pages_offset && last + arena.page_stride <= arena.segment_bytes);
}

void memory(const std::string& text) {
  static const auto transport = kv::make_shared_memory_transport({});
  static const int file = [] {
    const int made = memfd_create("peer", MFD_CLOEXEC);
    require(made >= 0 && ftruncate(made, 4096) == 0);
    return made;
  }();
  for (const bool with_file : {false, true}) {
    int answers = 0;
    transport->connect({text, with_file ? dup(file) : -1}, {}, "", std::chrono::seconds(1),
                       [&](const auto& connected) {
                         ++answers;
                         require(!connected || with_file);
                       });
    require(answers == 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  addresses(std::string(text));
  hello(text);
  memory(std::string(text));
  return 0;
}
