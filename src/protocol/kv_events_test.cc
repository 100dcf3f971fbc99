#include "protocol/kv_events.h"

#include <functional>

#include <gtest/gtest.h>

#include "protocol/msgpack.h"

namespace tandem::protocol {
namespace {

std::string hex_bytes(std::string_view text) {
  std::string out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  return out;
}

// [12.5, [EVENT...], rank?] around events that are encoded already.
std::string batch_of(const std::vector<std::string>& events, std::optional<int> rank = {}) {
  MsgpackWriter out;
  out.array(rank ? 3 : 2);
  out.real(12.5);
  out.array(events.size());
  for (const std::string& event : events) out.raw(event);
  if (rank) out.integer(*rank);
  return out.take();
}

std::string stored_array(size_t trailing) {
  MsgpackWriter out;
  out.array(6 + trailing);
  out.string("BlockStored");
  out.array(2);
  out.unsigned_integer(0xFFFFFFFFFFFFFFFEU);
  out.integer(-2);
  out.nil();
  out.array(4);
  for (const int token : {1, 2, 3, 300000}) out.integer(token);
  out.integer(2);
  out.nil();
  for (size_t i = 0; i < trailing; ++i) {
    if (i == 0) out.string("GPU");
    if (i == 1) out.string("adapter");
    if (i > 1) out.nil();
  }
  return out.take();
}

TEST(KvEvents, OlderArraysAreReadWithAnyNumberOfTrailingFields) {
  for (size_t trailing = 0; trailing < 20; ++trailing) {
    const std::string payload = batch_of({stored_array(trailing)}, 3);
    const auto batch = decode_kv_events(payload);
    ASSERT_TRUE(batch) << trailing;
    EXPECT_EQ(batch->timestamp, 12.5);
    EXPECT_EQ(batch->rank, 3);
    ASSERT_EQ(batch->events.size(), 1U);
    const auto& event = std::get<BlockStored>(batch->events[0]);
    ASSERT_EQ(event.hashes.size(), 2U);
    EXPECT_EQ(event.hashes[0].key(), event.hashes[1].key()) << "one number, whatever its sign";
    EXPECT_FALSE(event.parent);
    EXPECT_EQ(event.tokens, (std::vector<int32_t>{1, 2, 3, 300000}));
    EXPECT_EQ(event.block_tokens, 2);
    EXPECT_EQ(event.lora_name, trailing >= 2 ? "adapter" : "");
    EXPECT_TRUE(event.main_group);
  }
}

TEST(KvEvents, AByteStringAndItsIntegerFormAreOneName) {
  const std::string digest =
      hex_bytes("000102030405060708090a0b0c0d0e0f101112131415161718191a1bfffffffe");
  const EventHash bytes{.bytes = digest};
  EXPECT_EQ(bytes.key(), 0x18191a1bfffffffeU);
  EXPECT_EQ(EventHash{.number = 7}.key(), 7U);
  EXPECT_EQ(EventHash{.bytes = "\x01\x02"}.key(), 0x0102U);
}

KvEventBatch sample() {
  static const std::string kName(32, 'h');
  KvEventBatch batch;
  batch.timestamp = 1700000000.25;
  batch.rank = 1;
  batch.events.emplace_back(AllBlocksCleared{});
  BlockStored stored;
  stored.hashes = {{.bytes = kName}, {.number = 0x8000000000000001U}};
  stored.parent = EventHash{.number = 5};
  stored.tokens = {10, 11, 12, 13};
  stored.block_tokens = 2;
  stored.lora_id = 4;
  stored.medium = EventMedium::kHost;
  stored.lora_name = "french";
  batch.events.emplace_back(stored);
  stored.parent.reset();
  stored.lora_name = {};
  stored.extras = {extra_of_salt("tenant"), ""};
  batch.events.emplace_back(stored);
  batch.events.emplace_back(
      BlockRemoved{.hashes = {{.number = 9}}, .medium = EventMedium::kStorage, .group = 0});
  return batch;
}

TEST(KvEvents, WhatIsWrittenIsReadInBothFormsOfBothDialects) {
  for (const EventDialect dialect : {EventDialect::kVllm, EventDialect::kSglang}) {
    for (const bool maps : {false, true}) {
      const std::string payload = encode_kv_events(sample(), {dialect, maps});
      const auto batch = decode_kv_events(payload);
      ASSERT_TRUE(batch) << batch.error().message;
      EXPECT_EQ(batch->unknown + batch->malformed, 0U);
      EXPECT_EQ(batch->rank, 1);
      ASSERT_EQ(batch->events.size(), 4U);
      EXPECT_TRUE(std::holds_alternative<AllBlocksCleared>(batch->events[0]));
      const auto& stored = std::get<BlockStored>(batch->events[1]);
      EXPECT_EQ(stored.hashes[0].bytes, std::string(32, 'h'));
      EXPECT_EQ(stored.hashes[1].key(), 0x8000000000000001U);
      EXPECT_EQ(stored.parent->key(), 5U);
      EXPECT_EQ(stored.tokens.size(), 4U);
      EXPECT_EQ(stored.lora_id, 4);
      EXPECT_EQ(stored.medium, EventMedium::kHost);
      const auto& salted = std::get<BlockStored>(batch->events[2]);
      if (dialect == EventDialect::kVllm) {
        EXPECT_EQ(stored.lora_name, "french");
        ASSERT_EQ(salted.extras.size(), 2U);
        EXPECT_EQ(salted.extras[0], extra_of_salt("tenant"));
        EXPECT_EQ(salted.extras[1], "");
      } else if (maps) {
        EXPECT_EQ(salted.extras[0], extra_of_salt("tenant"));
      }
      const auto& removed = std::get<BlockRemoved>(batch->events[3]);
      EXPECT_EQ(removed.hashes[0].key(), 9U);
      EXPECT_EQ(removed.medium, EventMedium::kStorage);
    }
  }
}

TEST(KvEvents, UnknownKindsAndBrokenEventsCostOnlyThemselves) {
  MsgpackWriter unknown;
  unknown.map(2);
  unknown.string("type");
  unknown.string("BlockMigrated");
  unknown.string("destination");
  unknown.string("peer");
  MsgpackWriter broken;
  broken.array(3);
  broken.string("BlockStored");
  broken.string("no list");
  broken.nil();
  MsgpackWriter cleared;
  cleared.array(1);
  cleared.string("AllBlocksCleared");
  const auto batch = decode_kv_events(batch_of({unknown.take(), broken.take(), cleared.take()}));
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->unknown, 1U);
  EXPECT_EQ(batch->malformed, 1U);
  EXPECT_EQ(batch->events.size(), 1U);
}

std::string stored_map(const std::function<void(MsgpackWriter&)>& more, size_t fields) {
  MsgpackWriter out;
  out.map(5 + fields);
  out.string("token_ids");
  out.array(2);
  for (int i = 0; i < 2; ++i) {  // pairs, from engines that draft
    out.array(2);
    out.integer(40 + i);
    out.integer(41 + i);
  }
  out.string("type");
  out.string("BlockStored");
  out.string("block_hashes");
  out.array(1);
  out.integer(1);
  out.string("block_size");
  out.integer(2);
  out.string("parent_block_hash");
  out.nil();
  more(out);
  return out.take();
}

TEST(KvEvents, GroupsOthersCopiesAndPairsOfTokensAreTold) {
  const auto text = [](const char* key, const char* value) {
    return [=](MsgpackWriter& out) { out.string(key), out.string(value); };
  };
  const auto read = [](const std::string& event) {
    const auto batch = decode_kv_events(batch_of({event}));
    return std::get<BlockStored>(batch->events.at(0));
  };
  EXPECT_EQ(read(stored_map(text("medium", "CPU_PINNED"), 1)).tokens,
            (std::vector<int32_t>{40, 41}));
  EXPECT_EQ(read(stored_map(text("medium", "CPU_PINNED"), 1)).medium, EventMedium::kHost);
  EXPECT_EQ(read(stored_map(text("medium", "MARS"), 1)).medium, EventMedium::kUnknown);
  EXPECT_FALSE(read(stored_map(text("kv_cache_spec_kind", "sliding_window"), 1)).main_group);
  EXPECT_TRUE(read(stored_map(text("kv_cache_spec_kind", "full_attention"), 1)).main_group);
  EXPECT_FALSE(read(stored_map(text("locality", "REMOTE"), 1)).local);
  EXPECT_TRUE(read(stored_map(text("a_new_field", "anything"), 1)).local);
  const auto group = [](MsgpackWriter& out) { out.string("group_idx"), out.integer(1); };
  EXPECT_FALSE(read(stored_map(group, 1)).main_group);
  EXPECT_EQ(read(stored_map(text("cache_salt", "t"), 1)).extras.at(0), extra_of_salt("t"));
}

TEST(KvEvents, MediaInExtraKeysMakeAnotherIdentity) {
  const auto extra = [](const char* media) {
    const auto fields = [=](MsgpackWriter& out) {
      out.string("lora_name");
      out.string("adapter");
      out.string("extra_keys");
      out.array(1);
      out.array(media == nullptr ? 1 : 2);
      out.string("adapter");
      if (media == nullptr) return;
      out.array(2);
      out.string(media);
      out.integer(0);
    };
    const auto batch = decode_kv_events(batch_of({stored_map(fields, 2)}));
    const auto& extras = std::get<BlockStored>(batch->events.at(0)).extras;
    return extras.empty() ? std::string() : extras[0];
  };
  EXPECT_EQ(extra(nullptr), "") << "the adapter is told elsewhere";
  EXPECT_NE(extra("a"), "");
  EXPECT_NE(extra("a"), extra("b"));
}

TEST(KvEvents, EveryCutIsAnErrorOrAnEventLess) {
  const std::string payload = encode_kv_events(sample(), {});
  for (size_t length = 0; length < payload.size(); ++length)
    EXPECT_FALSE(decode_kv_events(std::string_view(payload).substr(0, length))) << length;
  EXPECT_FALSE(decode_kv_events(payload + "x"));
  EXPECT_FALSE(decode_kv_events(batch_of({}, -1)));
}

TEST(Msgpack, EveryFormOfANumberIsRead) {
  const auto read = [](std::string_view bytes) {
    MsgpackReader in(bytes);
    int64_t value = 0;
    EXPECT_TRUE(in.integer(value) && in.at_end());
    return value;
  };
  EXPECT_EQ(read(std::string_view("\xff", 1)), -1);
  EXPECT_EQ(read(std::string_view("\xe0", 1)), -32);
  EXPECT_EQ(read(std::string_view("\xd0\x80", 2)), -128);
  EXPECT_EQ(read(std::string_view("\xd1\xff\x00", 3)), -256);
  EXPECT_EQ(read(std::string_view("\xd2\xff\xff\xff\xfe", 5)), -2);
  EXPECT_EQ(read(std::string_view("\xd3\xff\xff\xff\xff\xff\xff\xff\xfd", 9)), -3);
  EXPECT_EQ(read(std::string_view("\xcd\x01\x00", 3)), 256);
  double real = 0;
  MsgpackReader single(std::string_view("\xca\x3f\x80\x00\x00", 5));
  EXPECT_TRUE(single.real(real));
  EXPECT_EQ(real, 1.0);
  uint64_t natural = 0;
  EXPECT_FALSE(MsgpackReader("\xff").unsigned_integer(natural));
  // An extension, then nil.
  MsgpackReader mixed(std::string_view("\xd6\x01zzzz\xc0", 7));
  EXPECT_TRUE(mixed.skip());
  EXPECT_TRUE(mixed.nil());
  EXPECT_TRUE(mixed.at_end());
}

}  // namespace
}  // namespace tandem::protocol
