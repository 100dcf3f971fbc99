#include "protocol/kv_events.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>

#include "protocol/msgpack.h"

namespace tandem::protocol {

namespace {

using Kind = MsgpackReader::Kind;

constexpr char kSaltMark = 's';
constexpr char kOtherMark = 'x';

std::string upper(std::string_view text) {
  std::string out(text.substr(0, 32));
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

bool skip_nil(MsgpackReader& in) { return in.kind() == Kind::kNil && in.nil(); }

bool read_hash(MsgpackReader& in, EventHash& hash) {
  if (in.kind() == Kind::kBinary) return in.binary(hash.bytes) && !hash.bytes.empty();
  return in.any_integer(hash.number);
}

bool read_hashes(MsgpackReader& in, std::vector<EventHash>& hashes) {
  size_t count = 0;
  if (!in.array(count)) return false;
  hashes.resize(count);
  return std::ranges::all_of(hashes, [&](EventHash& hash) { return read_hash(in, hash); });
}

bool read_token(MsgpackReader& in, int32_t& token) {
  int64_t wide = 0;
  if (!in.integer(wide) || wide < 0 || wide > INT32_MAX) return false;
  token = static_cast<int32_t>(wide);
  return true;
}

// Ids; or pairs of an id and the one after it, from engines that draft with them.
bool read_tokens(MsgpackReader& in, std::vector<int32_t>& tokens) {
  size_t count = 0;
  if (!in.array(count)) return false;
  tokens.resize(count);
  for (int32_t& token : tokens) {
    if (in.kind() != Kind::kArray) {
      if (!read_token(in, token)) return false;
      continue;
    }
    size_t pair = 0;
    if (!in.array(pair) || pair == 0 || !read_token(in, token)) return false;
    for (size_t i = 1; i < pair; ++i) {
      if (!in.skip()) return false;
    }
  }
  return true;
}

bool read_text(MsgpackReader& in, std::string_view& text) {
  return skip_nil(in) || in.string(text);
}

bool read_number(MsgpackReader& in, std::optional<int64_t>& number) {
  if (skip_nil(in)) return true;
  int64_t value = 0;
  if (!in.integer(value)) return false;
  number = value;
  return true;
}

void append_sized(std::string& out, char mark, std::string_view bytes) {
  out += mark;
  out += std::to_string(bytes.size());
  out += ':';
  out += bytes;
}

// A block's list: strings are salts (or the adapter's name, which the event tells anyway), the rest
// is media.
bool read_extra(MsgpackReader& in, std::string_view lora_name, std::string& extra) {
  if (skip_nil(in)) return true;
  size_t count = 0;
  if (!in.array(count)) return false;
  for (size_t i = 0; i < count; ++i) {
    std::string_view value;
    if (in.kind() == Kind::kString) {
      if (!in.string(value)) return false;
      if (value != lora_name || lora_name.empty()) append_sized(extra, kSaltMark, value);
    } else {
      if (!in.whole(value)) return false;
      append_sized(extra, kOtherMark, value);
    }
  }
  return true;
}

bool read_extras(std::string_view encoded, std::string_view lora_name,
                 std::vector<std::string>& extras) {
  MsgpackReader in(encoded);
  size_t count = 0;
  if (skip_nil(in)) return true;
  if (in.kind() != Kind::kArray) return true;  // something else stands there in other engines
  if (!in.array(count)) return false;
  extras.resize(count);
  for (std::string& extra : extras) {
    if (!read_extra(in, lora_name, extra)) return false;
  }
  if (std::ranges::all_of(extras, [](const std::string& extra) { return extra.empty(); }))
    extras.clear();
  return true;
}

// The fields of an event in the order of the array form.
enum class Field : uint8_t {
  kHashes,
  kParent,
  kTokens,
  kBlockTokens,
  kLoraId,
  kMedium,
  kLoraName,
  kExtraKeys,
  kGroup,
  kSpecKind,
  kSpecWindow,
  kLocality,
  kOwnership,
  kSalt,  // SGLang, maps only
  kNone,
};
constexpr std::array<std::pair<std::string_view, Field>, 14> kNames = {{
    {"block_hashes", Field::kHashes},
    {"parent_block_hash", Field::kParent},
    {"token_ids", Field::kTokens},
    {"block_size", Field::kBlockTokens},
    {"lora_id", Field::kLoraId},
    {"medium", Field::kMedium},
    {"lora_name", Field::kLoraName},
    {"extra_keys", Field::kExtraKeys},
    {"group_idx", Field::kGroup},
    {"kv_cache_spec_kind", Field::kSpecKind},
    {"kv_cache_spec_sliding_window", Field::kSpecWindow},
    {"locality", Field::kLocality},
    {"ownership", Field::kOwnership},
    {"cache_salt", Field::kSalt},
}};
constexpr std::array kStoredOrder = {
    Field::kHashes,     Field::kParent,   Field::kTokens,    Field::kBlockTokens, Field::kLoraId,
    Field::kMedium,     Field::kLoraName, Field::kExtraKeys, Field::kGroup,       Field::kSpecKind,
    Field::kSpecWindow, Field::kLocality, Field::kOwnership};
constexpr std::array kRemovedOrder = {Field::kHashes, Field::kMedium, Field::kGroup,
                                      Field::kLocality, Field::kOwnership};

struct Fields {
  BlockStored stored;
  std::string_view extra_keys;  // as encoded
  std::string_view salt;
  std::string_view spec_kind;
  std::string_view locality;
  std::string_view ownership;
  bool hashes = false;
};

bool read_field(MsgpackReader& in, Field field, Fields& out) {
  std::string_view text;
  switch (field) {
    case Field::kHashes:
      out.hashes = true;
      return read_hashes(in, out.stored.hashes);
    case Field::kParent: {
      if (skip_nil(in)) return true;
      out.stored.parent.emplace();
      return read_hash(in, *out.stored.parent);
    }
    case Field::kTokens:
      return skip_nil(in) || read_tokens(in, out.stored.tokens);
    case Field::kBlockTokens:
      return skip_nil(in) || read_token(in, out.stored.block_tokens);
    case Field::kLoraId:
      return read_number(in, out.stored.lora_id);
    case Field::kMedium:
      if (!read_text(in, text)) return false;
      out.stored.medium = parse_medium(text);
      return true;
    case Field::kLoraName:
      return read_text(in, out.stored.lora_name);
    case Field::kExtraKeys:
      return in.whole(out.extra_keys);
    case Field::kGroup:
      return read_number(in, out.stored.group);
    case Field::kSpecKind:
      return read_text(in, out.spec_kind);
    case Field::kLocality:
      return read_text(in, out.locality);
    case Field::kOwnership:
      return read_text(in, out.ownership);
    case Field::kSalt:
      return read_text(in, out.salt);
    case Field::kSpecWindow:
    case Field::kNone:
      return in.skip();
  }
  return in.skip();
}

// What only all fields together tell.
bool finish(Fields& fields) {
  BlockStored& stored = fields.stored;
  if (!fields.hashes) return false;
  stored.local =
      (fields.locality.empty() || upper(fields.locality) == "LOCAL") && fields.ownership.empty();
  const std::string kind = upper(fields.spec_kind);
  stored.main_group = kind.empty() ? stored.group.value_or(0) == 0
                                   : kind.find("SLIDING") == std::string::npos && kind != "MAMBA" &&
                                         kind.find("CHUNKED") == std::string::npos &&
                                         kind.find("CROSS") == std::string::npos;
  if (!fields.extra_keys.empty() &&
      !read_extras(fields.extra_keys, stored.lora_name, stored.extras))
    return false;
  if (!fields.salt.empty() && !stored.parent && stored.extras.empty() && !stored.hashes.empty()) {
    stored.extras.resize(stored.hashes.size());
    stored.extras[0] = extra_of_salt(fields.salt);
  }
  if (!stored.extras.empty() && stored.extras.size() != stored.hashes.size()) return false;
  return stored.tokens.empty() ||
         (stored.block_tokens > 0 &&
          stored.tokens.size() ==
              stored.hashes.size() * static_cast<size_t>(stored.block_tokens)) ||
         stored.hashes.empty();
}

enum class Read : uint8_t { kGood, kUnknown, kMalformed };

Read make_event(std::string_view tag, Fields& fields, std::vector<KvEvent>& events) {
  if (tag == "AllBlocksCleared") {
    events.emplace_back(AllBlocksCleared{});
    return Read::kGood;
  }
  if (tag != "BlockStored" && tag != "BlockRemoved") return Read::kUnknown;
  if (!finish(fields)) return Read::kMalformed;
  BlockStored& stored = fields.stored;
  if (tag == "BlockStored") {
    events.emplace_back(std::move(stored));
  } else {
    events.emplace_back(BlockRemoved{.hashes = std::move(stored.hashes),
                                     .medium = stored.medium,
                                     .group = stored.group,
                                     .local = stored.local});
  }
  return Read::kGood;
}

Read read_array(std::string_view encoded, std::vector<KvEvent>& events) {
  MsgpackReader in(encoded);
  size_t count = 0;
  std::string_view tag;
  if (!in.array(count) || count == 0 || !in.string(tag)) return Read::kMalformed;
  const bool removed = tag == "BlockRemoved";
  if (!removed && tag != "BlockStored" && tag != "AllBlocksCleared") return Read::kUnknown;
  const std::span<const Field> order =
      removed ? std::span<const Field>(kRemovedOrder) : std::span<const Field>(kStoredOrder);
  Fields fields;
  for (size_t i = 0; i + 1 < count; ++i) {
    const Field field = i < order.size() && tag != "AllBlocksCleared" ? order[i] : Field::kNone;
    if (!read_field(in, field, fields)) return Read::kMalformed;
  }
  return make_event(tag, fields, events);
}

Read read_map(std::string_view encoded, std::vector<KvEvent>& events) {
  MsgpackReader in(encoded);
  size_t count = 0;
  if (!in.map(count)) return Read::kMalformed;
  Fields fields;
  std::string_view tag;
  for (size_t i = 0; i < count; ++i) {
    std::string_view name;
    if (!in.string(name)) return Read::kMalformed;
    if (name == "type") {
      if (!in.string(tag)) return Read::kMalformed;
      continue;
    }
    const auto* const found =
        std::ranges::find(kNames, name, &std::pair<std::string_view, Field>::first);
    if (!read_field(in, found == kNames.end() ? Field::kNone : found->second, fields))
      return Read::kMalformed;
  }
  return make_event(tag, fields, events);
}

// --- writing

class EventWriter {
 public:
  EventWriter(MsgpackWriter& out, EventForm form) : out_(out), form_(form) {}

  void write(const AllBlocksCleared& /*event*/) { open("AllBlocksCleared", 0); }

  void write(const BlockRemoved& event) {
    const bool group = event.group.has_value() && vllm();
    open("BlockRemoved", group ? 3 : 2);
    key("block_hashes");
    hashes(event.hashes);
    key("medium");
    out_.string(medium_name(event.medium));
    if (!group) return;
    key("group_idx");
    out_.integer(*event.group);
  }

  void write(const BlockStored& event) {
    const std::string_view salt = salt_of(event);
    const bool group = event.group.has_value() && vllm();
    size_t fields = 6;
    if (vllm()) fields = group ? 9 : salt.empty() ? 7 : 8;
    if (!vllm() && form_.maps && !salt.empty()) fields = 7;
    open("BlockStored", fields);
    key("block_hashes");
    hashes(event.hashes);
    key("parent_block_hash");
    event.parent ? hash(*event.parent) : out_.nil();
    key("token_ids");
    out_.array(event.tokens.size());
    for (const int32_t token : event.tokens) out_.integer(token);
    key("block_size");
    out_.integer(event.block_tokens);
    key("lora_id");
    event.lora_id ? out_.integer(*event.lora_id) : out_.nil();
    key("medium");
    out_.string(medium_name(event.medium));
    if (fields == 6) return;
    if (!vllm()) {
      key("cache_salt");
      out_.string(salt);
      return;
    }
    key("lora_name");
    event.lora_name.empty() ? out_.nil() : out_.string(event.lora_name);
    if (fields == 7) return;
    key("extra_keys");
    write_extras(event, salt);
    if (!group) return;
    key("group_idx");
    out_.integer(*event.group);
  }

 private:
  bool vllm() const { return form_.dialect == EventDialect::kVllm; }
  void open(std::string_view tag, size_t fields) {
    if (form_.maps) {
      out_.map(fields + 1);
      out_.string("type");
    } else {
      out_.array(fields + 1);
    }
    out_.string(tag);
  }
  void key(std::string_view name) {
    if (form_.maps) out_.string(name);
  }
  void hash(const EventHash& value) {
    if (!value.bytes.empty()) return out_.binary(std::as_bytes(std::span(value.bytes)));
    // SGLang's are signed.
    if (vllm()) return out_.unsigned_integer(value.number);
    out_.integer(static_cast<int64_t>(value.number));
  }
  void hashes(const std::vector<EventHash>& values) {
    out_.array(values.size());
    for (const EventHash& value : values) hash(value);
  }
  void write_extras(const BlockStored& event, std::string_view salt) {
    if (salt.empty()) return out_.nil();
    out_.array(event.hashes.size());
    out_.array(1);
    out_.string(salt);
    for (size_t i = 1; i < event.hashes.size(); ++i) out_.nil();
  }
  static std::string_view salt_of(const BlockStored& event) {
    if (event.extras.empty() || event.extras[0].empty() || event.extras[0][0] != kSaltMark)
      return {};
    const std::string_view extra = event.extras[0];
    const size_t colon = extra.find(':');
    size_t size = 0;
    for (const char digit : extra.substr(1, colon - 1))
      size = size * 10 + static_cast<size_t>(digit - '0');
    return extra.substr(colon + 1, size);
  }

  MsgpackWriter& out_;
  EventForm form_;
};

}  // namespace

uint64_t EventHash::key() const {
  if (bytes.empty()) return number;
  uint64_t value = 0;
  const std::string_view tail = bytes.substr(bytes.size() - std::min<size_t>(8, bytes.size()));
  for (const char c : tail) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

EventMedium parse_medium(std::string_view name) {
  const std::string known = upper(name);
  if (known.empty() || known.starts_with("GPU")) return EventMedium::kDevice;
  if (known.starts_with("CPU")) return EventMedium::kHost;
  if (known.starts_with("STORAGE") || known.starts_with("DISK")) return EventMedium::kStorage;
  return EventMedium::kUnknown;
}

std::string_view medium_name(EventMedium medium) {
  switch (medium) {
    case EventMedium::kDevice:
      return "GPU";
    case EventMedium::kHost:
      return "CPU";
    default:
      return "STORAGE";
  }
}

std::string extra_of_salt(std::string_view salt) {
  std::string extra;
  if (!salt.empty()) append_sized(extra, kSaltMark, salt);
  return extra;
}

Result<KvEventBatch> decode_kv_events(std::string_view payload) {
  const auto bad = [](const char* what) {
    return make_error(502, "bad_kv_events", std::string("A batch of KV events ") + what + ".");
  };
  if (payload.size() > kMaxEventPayload) return bad("is too long");
  MsgpackReader in(payload);
  size_t fields = 0;
  size_t count = 0;
  KvEventBatch batch;
  if (!in.array(fields) || fields < 2 || !in.real(batch.timestamp) || !in.array(count))
    return bad("is not [timestamp, events, ...]");
  batch.events.reserve(std::min<size_t>(count, 4096));
  for (size_t i = 0; i < count; ++i) {
    std::string_view encoded;
    if (!in.whole(encoded)) return bad("is cut short");
    const Kind kind = MsgpackReader(encoded).kind();
    const Read read = kind == Kind::kMap     ? read_map(encoded, batch.events)
                      : kind == Kind::kArray ? read_array(encoded, batch.events)
                                             : Read::kMalformed;
    batch.unknown += read == Read::kUnknown ? 1 : 0;
    batch.malformed += read == Read::kMalformed ? 1 : 0;
  }
  if (fields > 2 && !skip_nil(in)) {
    int64_t rank = 0;
    if (!in.integer(rank) || rank < 0 || rank > kMaxEventRank) return bad("has no good rank");
    batch.rank = static_cast<int32_t>(rank);
  }
  for (size_t i = 3; i < fields; ++i) {
    if (!in.skip()) return bad("is cut short");
  }
  if (!in.at_end()) return bad("has bytes behind it");
  return batch;
}

std::string encode_kv_events(const KvEventBatch& batch, EventForm form) {
  MsgpackWriter out;
  out.array(batch.rank ? 3 : 2);
  out.real(batch.timestamp);
  out.array(batch.events.size());
  for (const KvEvent& event : batch.events)
    std::visit([&](const auto& one) { EventWriter(out, form).write(one); }, event);
  if (batch.rank) out.integer(*batch.rank);
  return out.take();
}

}  // namespace tandem::protocol
