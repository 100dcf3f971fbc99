#include "protocol/handoff_frames.h"

#include <array>
#include <bit>
#include <cmath>

#include "numerics/digest.h"
#include "protocol/msgpack.h"
#include "protocol/request.h"

namespace tandem::protocol {
namespace {

constexpr std::string_view kMagic = "TDHF";

// Each frame lists its fields once; the encoder and the decoder both walk the list.
template <typename F>
void fields(F& f, HandoffKey& k) {
  f(1, k.id), f(2, k.attempt), f(3, k.nonce);
}
template <typename F>
void fields(F& f, HelloFrame& x) {
  f(1, x.version_min), f(2, x.version_max), f(3, x.role), f(4, x.epoch), f(5, x.lineage),
      f(6, x.representation);
  f(7, x.block_tokens), f(8, x.kv_dtype), f(9, x.layout_id), f(10, x.layers), f(11, x.kv_heads),
      f(12, x.head_dim);
  f(13, x.nonce), f(14, x.proof), f(15, x.arena_bytes), f(16, x.pages_offset), f(17, x.page_stride),
      f(18, x.page_count);
  f(19, x.windows), f(20, x.layer_places), f(21, x.instance);
  f(22, x.kv_scales), f(23, x.weights), f(24, x.accepts);
  f(25, x.transports), f(27, x.process);
  f(28, x.tensor_ranks), f(29, x.data_ranks), f(30, x.stages), f(31, x.rank);
  f(32, x.converted);
}
template <typename F>
void fields(F& f, ProofFrame& x) {
  f(1, x.proof), f(2, x.descriptor);
}
template <typename F>
void fields(F& f, OpenFrame& x) {
  fields(f, x.key);
}
template <typename F>
void fields(F& f, OfferFrame& x) {
  fields(f, x.key), f(4, x.tokens), f(5, x.salt), f(6, x.blocks), f(7, x.bytes), f(8, x.adapter);
}
template <typename F>
void fields(F& f, GrantFrame& x) {
  fields(f, x.key), f(4, x.first_missing), f(5, x.ranks);
}
template <typename F>
void fields(F& f, BusyFrame& x) {
  fields(f, x.key), f(4, x.message);
}
template <typename F>
void fields(F& f, PushFrame& x) {
  fields(f, x.key), f(4, x.layer), f(5, x.first_block), f(6, x.pages), f(7, x.digests);
}
template <typename F>
void fields(F& f, CommitFrame& x) {
  fields(f, x.key), f(4, x.layers), f(5, x.first_blocks), f(6, x.blocks), f(7, x.bytes),
      f(8, x.first_tokens);
  f(9, x.prompt_tokens), f(10, x.cached_tokens);
}
template <typename F>
void fields(F& f, AckFrame& x) {
  fields(f, x.key), f(4, x.rank), f(5, x.link_rate);
}
template <typename F>
void fields(F& f, AbortFrame& x) {
  fields(f, x.key), f(4, x.status), f(5, x.code), f(6, x.message), f(7, x.rank);
}
template <typename F>
void fields(F& f, AbortAckFrame& x) {
  fields(f, x.key), f(4, x.rank);
}
template <typename F>
void fields(F& f, RenewFrame& x) {
  fields(f, x.key);
}
template <typename F>
void fields(F& f, PingFrame& x) {
  f(1, x.sequence), f(2, x.reply);
}

struct FieldCounter {
  size_t count = 0;
  template <typename T>
  void operator()(int /*key*/, T& /*value*/) {
    ++count;
  }
};

struct FieldWriter {
  MsgpackWriter out;
  template <typename T>
  void operator()(int key, T& value) {
    out.unsigned_integer(static_cast<uint64_t>(key));
    write(value);
  }
  void write(uint32_t value) { out.unsigned_integer(value); }
  void write(uint64_t value) { out.unsigned_integer(value); }
  void write(bool value) { out.boolean(value); }
  void write(const std::string& value) { out.binary(std::as_bytes(std::span(value))); }
  void write(const std::vector<int32_t>& values) {
    out.array(values.size());
    for (const int32_t value : values) out.integer(value);
  }
  void write(const std::vector<uint64_t>& values) {
    out.array(values.size());
    for (const uint64_t value : values) out.unsigned_integer(value);
  }
  // Each token: its id and logprob, then those of the alternatives; numbers as their bits.
  void write(const std::vector<ScoredToken>& tokens) {
    out.array(tokens.size());
    for (const ScoredToken& token : tokens) {
      out.array(2 + 2 * token.top.size());
      write(Chance{token.token, token.logprob});
      for (const Chance& chance : token.top) write(chance);
    }
  }
  void write(const Chance& chance) {
    out.integer(chance.token);
    out.unsigned_integer(std::bit_cast<uint32_t>(chance.logprob));
  }
  void write(const std::vector<PageTag>& tags) {
    out.array(2 * tags.size());
    for (const PageTag& tag : tags) out.integer(tag.page), out.unsigned_integer(tag.generation);
  }
};

// Reads the one field whose key it was built for; the others stay as they are.
struct FieldReader {
  MsgpackReader& in;
  uint64_t wanted;
  bool found = false;
  bool good = true;

  template <typename T>
  void operator()(int key, T& value) {
    if (static_cast<uint64_t>(key) != wanted || found) return;
    found = true;
    good = read(value);
  }
  bool read(uint32_t& value) {
    uint64_t wide = 0;
    if (!in.unsigned_integer(wide) || wide > UINT32_MAX) return false;
    value = static_cast<uint32_t>(wide);
    return true;
  }
  bool read(uint64_t& value) { return in.unsigned_integer(value); }
  bool read(bool& value) { return in.boolean(value); }
  bool read(std::string& value) {
    std::string_view bytes;
    if (!in.binary(bytes)) return false;
    value = std::string(bytes);
    return true;
  }
  bool read_token(int32_t& value) {
    int64_t wide = 0;
    if (!in.integer(wide) || wide < INT32_MIN || wide > INT32_MAX) return false;
    value = static_cast<int32_t>(wide);
    return true;
  }
  bool read(std::vector<int32_t>& values) {
    size_t count = 0;
    if (!in.array(count)) return false;
    values.resize(count);
    for (int32_t& value : values) {
      if (!read_token(value)) return false;
    }
    return true;
  }
  bool read(std::vector<uint64_t>& values) {
    size_t count = 0;
    if (!in.array(count)) return false;
    values.resize(count);
    for (uint64_t& value : values) {
      if (!in.unsigned_integer(value)) return false;
    }
    return true;
  }
  bool read(std::vector<ScoredToken>& tokens) {
    size_t count = 0;
    if (!in.array(count) || count > kMaxFirstTokens) return false;
    tokens.resize(count);
    for (ScoredToken& token : tokens) {
      size_t numbers = 0;
      if (!in.array(numbers) || numbers < 2 || numbers % 2 != 0) return false;
      Chance first;
      if (!read(first)) return false;
      token.token = first.token;
      token.logprob = first.logprob;
      if (numbers / 2 - 1 > kMaxTopLogprobs) return false;
      token.top.resize(numbers / 2 - 1);
      for (Chance& chance : token.top) {
        if (!read(chance)) return false;
      }
    }
    return true;
  }
  bool read(Chance& chance) {
    uint32_t bits = 0;
    if (!read_token(chance.token) || !read(bits)) return false;
    chance.logprob = std::bit_cast<float>(bits);
    return std::isfinite(chance.logprob);
  }
  bool read(std::vector<PageTag>& tags) {
    size_t count = 0;
    if (!in.array(count) || count % 2 != 0) return false;
    tags.resize(count / 2);
    for (PageTag& tag : tags) {
      if (!read_token(tag.page) || !in.unsigned_integer(tag.generation)) return false;
    }
    return true;
  }
};

tl::unexpected<Error> protocol_error(std::string message) {
  return make_error(502, "handoff_protocol", std::move(message));
}

template <typename Frame>
Result<HandoffFrame> read_frame(std::string_view payload) {
  Frame frame;
  MsgpackReader in(payload);
  size_t count = 0;
  if (!in.map(count)) return protocol_error("A handoff frame's payload is not a map.");
  for (size_t i = 0; i < count; ++i) {
    uint64_t key = 0;
    if (!in.unsigned_integer(key)) return protocol_error("A handoff frame has a malformed key.");
    FieldReader reader{in, key};
    fields(reader, frame);
    if (!reader.good || (!reader.found && !in.skip()))
      return protocol_error("A handoff frame has a malformed field.");
  }
  if (!in.at_end()) return protocol_error("Bytes follow a handoff frame's fields.");
  return HandoffFrame(std::move(frame));
}

template <size_t I>
Result<HandoffFrame> read_frame_of(size_t type, std::string_view payload) {
  if constexpr (I < std::variant_size_v<HandoffFrame>) {
    if (type == I + 1) return read_frame<std::variant_alternative_t<I, HandoffFrame>>(payload);
    return read_frame_of<I + 1>(type, payload);
  } else {
    return protocol_error("A handoff frame has an unknown type.");
  }
}

void put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

uint64_t get(std::string_view in, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i)
    value = value << 8 | static_cast<unsigned char>(in[at + static_cast<size_t>(i)]);
  return value;
}

}  // namespace

std::string encode_frame(const HandoffFrame& frame) {
  std::string payload = std::visit(
      [](auto copy) {
        FieldCounter counter;
        fields(counter, copy);
        FieldWriter writer;
        writer.out.map(counter.count);
        fields(writer, copy);
        return writer.out.take();
      },
      frame);
  std::string out(kMagic);
  put(out, kHandoffVersion, 2);
  put(out, frame.index() + 1, 2);
  put(out, payload.size(), 4);
  put(out, numerics::xxh3(std::as_bytes(std::span(payload))), 8);
  return out + payload;
}

Result<FrameHeader> decode_frame_header(std::string_view header) {
  if (header.size() != kFrameHeaderBytes || header.substr(0, 4) != kMagic) {
    return protocol_error("The peer does not speak the handoff protocol.");
  }
  FrameHeader out{static_cast<uint16_t>(get(header, 4, 2)),
                  static_cast<uint16_t>(get(header, 6, 2)),
                  static_cast<uint32_t>(get(header, 8, 4)), get(header, 12, 8)};
  if (out.version != kHandoffVersion) {
    return protocol_error("The peer speaks handoff version " + std::to_string(out.version) +
                          ", this program speaks " + std::to_string(kHandoffVersion) +
                          "; run the same release on both.");
  }
  if (out.payload_bytes > kMaxFramePayload)
    return protocol_error("A handoff frame is over the size bound.");
  return out;
}

Result<HandoffFrame> decode_frame_payload(const FrameHeader& header, std::string_view payload) {
  if (payload.size() != header.payload_bytes ||
      numerics::xxh3(std::as_bytes(std::span(payload))) != header.digest) {
    return protocol_error("A handoff frame's digest does not match its payload.");
  }
  return read_frame_of<0>(header.type, payload);
}

}  // namespace tandem::protocol
