// Each row against what the engine's own routers put on the wire, field by field.
#include "router/connectors/connector.h"

#include <set>

#include <gtest/gtest.h>

#include "base/json_value.h"
#include "router/connectors/leg_body.h"

namespace tandem::router {
namespace {

const Connector& row(std::string_view name) {
  const auto found = find_connector(name);
  EXPECT_TRUE(found) << name;
  return **found;
}

RandomBits counting() {
  return [next = uint64_t{0x0123456789abcdef}]() mutable {
    return next = next * 6364136223846793005U + 1442695040888963407U;
  };
}

struct Built {
  std::string text;
  JsonValue json;
  std::string at(std::string_view key) const {
    const JsonValue* const found = json.find(key);
    return found == nullptr ? "none" : found->dump();
  }
};

constexpr std::string_view kChatBody =
    R"({"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"b":1,"a":2}],)"
    R"("max_tokens":50,"max_completion_tokens":60,"min_tokens":3,"stream":true,)"
    R"("stream_options":{"include_usage":true},"seed":18446744073709551615,"x":1.0})";

class Legs {
 public:
  Legs(std::string_view connector, Api api, std::string_view body)
      : connector_(row(connector)), body_(std::make_shared<const std::string>(body)) {
    auto facts = read_facts(api, body);
    EXPECT_TRUE(facts) << body;
    if (facts) facts_ = std::move(*facts);
    GlobalIds ids(5);
    values = mint(connector_, facts_, counting(), ids, std::chrono::milliseconds(1764460800000));
    values.request_id = "req-1";
    values.bootstrap_host = "10.0.0.7";
    values.bootstrap_port = 8998;
    values.identity = {"engine-1", "10.0.0.7", "5600", "2"};
    values.prefill_side = SideAddress{"10.0.0.7", 6301, 61005, 2, 4, 3};
    values.decode_side = SideAddress{"10.0.0.8", 6302, 61006, 4, 2, 1};
    values.context_endpoint = "10.0.0.7:7777";
    values.context_dp_rank = 3;
  }

  Built make(LegPart leg, const Harvest* harvest = nullptr) const {
    const auto made = make_leg_body(connector_, leg, body_, facts_, values, harvest);
    EXPECT_TRUE(made) << made.error().message;
    if (!made) return {};
    Built built{made->str(), {}};
    auto json = parse_json(built.text);
    EXPECT_TRUE(json) << built.text;
    if (json) built.json = std::move(*json);
    return built;
  }

  Result<BodyPieces> try_make(LegPart leg, const Harvest* harvest = nullptr) const {
    return make_leg_body(connector_, leg, body_, facts_, values, harvest);
  }

  LegValues values;

 private:
  const Connector& connector_;
  std::shared_ptr<const std::string> body_;
  BodyFacts facts_;
};

// One token, one small JSON answer, and the tools' bytes as they were.
void expect_one_token_chat(const Built& built) {
  EXPECT_EQ(built.at("max_tokens"), "1");
  EXPECT_EQ(built.at("max_completion_tokens"), "1");
  EXPECT_EQ(built.at("min_tokens"), "none");
  EXPECT_EQ(built.at("stream"), "false");
  EXPECT_EQ(built.at("stream_options"), "none");
  EXPECT_EQ(built.at("seed"), "18446744073709551615");
  EXPECT_NE(built.text.find(R"("tools":[{"b":1,"a":2}])"), std::string::npos);
}

TEST(Connectors, HaveNamesAndAreFound) {
  std::set<std::string_view> names;
  for (const Connector& connector : connectors()) {
    EXPECT_TRUE(names.insert(connector.name).second);
    EXPECT_EQ(&row(connector.name), &connector);
    EXPECT_FALSE(connector.about.empty());
  }
  for (const char* name : {"tandem", "sglang", "vllm-nixl", "vllm-nixl-push", "vllm-mooncake",
                           "trtllm", "trtllm-gen-first", "shared-storage", "plain"})
    EXPECT_TRUE(names.contains(name)) << name;
  const auto none = find_connector("triton");
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("vllm-nixl-push"), std::string::npos);
}

TEST(Connectors, Tandem) {
  const Connector& tandem = row("tandem");
  EXPECT_FALSE(tandem.opaque);
  EXPECT_EQ(tandem.order, LegOrder::kTogether);
  EXPECT_TRUE(tandem.cut_in_flight);
  Legs legs("tandem", Api::kChat, kChatBody);
  EXPECT_FALSE(legs.try_make(LegPart::kPrefill));  // there is no leg without its envelope
  legs.values.tandem = R"({"leg":"prefill"})";
  EXPECT_EQ(legs.make(LegPart::kPrefill).text,
            R"({"tandem":{"leg":"prefill"},)" + std::string(kChatBody.substr(1)));
}

TEST(Connectors, SglangMeetsInARoom) {
  const Connector& sglang = row("sglang");
  EXPECT_EQ(sglang.order, LegOrder::kTogether);
  EXPECT_EQ(sglang.bootstrap_port, 8998);
  EXPECT_EQ(sglang.abort.path, "/abort_request");
  EXPECT_EQ(sglang.endpoints.info, "/server_info");
  EXPECT_EQ(sglang.endpoints.old_info, "/get_server_info");
  const Legs legs("sglang", Api::kChat, kChatBody);
  const Built prefill = legs.make(LegPart::kPrefill);
  const Built decode = legs.make(LegPart::kDecode);
  expect_one_token_chat(prefill);
  for (const Built* leg : {&prefill, &decode}) {
    EXPECT_EQ(leg->at("bootstrap_host"), "\"10.0.0.7\"");
    EXPECT_EQ(leg->at("bootstrap_port"), "8998");
    EXPECT_EQ(leg->at("bootstrap_room"), std::to_string(legs.values.rooms[0]));
    EXPECT_EQ(leg->at("rid"), "\"" + legs.values.rid + "\"");
  }
  EXPECT_EQ(decode.at("max_tokens"), "50");
  EXPECT_EQ(decode.at("stream"), "true");
  EXPECT_EQ(legs.values.rid.size(), 32U);
  EXPECT_EQ(abort_body(sglang, legs.values.rid),
            R"({"rid":")" + legs.values.rid + R"(","abort_all":false})");
  // A client that names its request keeps the name; nothing is aborted by it.
  const Legs own("sglang", Api::kChat, R"({"messages":[],"rid":"mine"})");
  EXPECT_EQ(own.make(LegPart::kDecode).at("rid"), "\"mine\"");
  EXPECT_EQ(abort_body(sglang, own.values.rid), "");
}

TEST(Connectors, SglangPortsMayBeNull) {
  Legs legs("sglang", Api::kChat, kChatBody);
  legs.values.bootstrap_port.reset();
  EXPECT_EQ(legs.make(LegPart::kPrefill).at("bootstrap_port"), "null");
}

TEST(Connectors, SglangBatchesHaveArraysOfEqualLength) {
  const auto expect_arrays = [](const Legs& legs, size_t count) {
    for (const LegPart leg : {LegPart::kPrefill, LegPart::kDecode}) {
      const Built built = legs.make(leg);
      for (const char* key : {"bootstrap_host", "bootstrap_port", "bootstrap_room"}) {
        ASSERT_NE(built.json.find(key), nullptr);
        EXPECT_EQ(built.json.find(key)->items().size(), count) << key;
      }
    }
  };
  expect_arrays(Legs("sglang", Api::kChat, R"({"messages":[],"n":3})"), 3);
  expect_arrays(Legs("sglang", Api::kCompletions, R"({"prompt":["a","b"]})"), 2);
  expect_arrays(Legs("sglang", Api::kCompletions, R"({"prompt":[[1,2],[3],[4]]})"), 3);
  expect_arrays(Legs("sglang", Api::kGenerate, R"({"input_ids":[[1],[2],[3],[4]]})"), 4);
  const Legs ids("sglang", Api::kGenerate, R"({"input_ids":[1,2,3]})");
  EXPECT_TRUE(ids.make(LegPart::kPrefill).json.find("bootstrap_room")->is_number());
}

TEST(Connectors, SglangGenerateIsBoundInItsSamplingParams) {
  const Legs legs("sglang", Api::kGenerate,
                  R"({"text":"a","sampling_params":{"max_new_tokens":9,"min_new_tokens":4,)"
                  R"("temperature":0.0},"stream":true})");
  const Built prefill = legs.make(LegPart::kPrefill);
  EXPECT_EQ(prefill.at("sampling_params"), R"({"max_new_tokens":1,"temperature":0.0})");
  EXPECT_EQ(prefill.at("stream"), "false");
  const Legs without("sglang", Api::kGenerate, R"({"text":"a"})");
  EXPECT_EQ(without.make(LegPart::kPrefill).at("sampling_params"), R"({"max_new_tokens":1})");
  const Legs list("sglang", Api::kGenerate, R"({"text":["a"],"sampling_params":[{"n":1}]})");
  EXPECT_EQ(list.make(LegPart::kPrefill).at("sampling_params"), R"([{"n":1}])");
}

TEST(Connectors, SglangRanks) {
  Legs legs("sglang", Api::kChat, kChatBody);
  EXPECT_EQ(legs.make(LegPart::kDecode).at("routed_dp_rank"), "none");
  legs.values.dp_rank = 1;
  legs.values.prefill_dp_rank = 3;
  const Built decode = legs.make(LegPart::kDecode);
  EXPECT_EQ(decode.at("routed_dp_rank"), "1");
  EXPECT_EQ(decode.at("disagg_prefill_dp_rank"), "3");
  EXPECT_EQ(legs.make(LegPart::kPrefill).at("disagg_prefill_dp_rank"), "none");
}

TEST(Connectors, VllmNixlCopiesPrefillsParams) {
  const Connector& nixl = row("vllm-nixl");
  EXPECT_EQ(nixl.order, LegOrder::kPrefillFirst);
  EXPECT_TRUE(nixl.lease);
  EXPECT_EQ(nixl.mint, kMintNothing + 0U);
  const Legs legs("vllm-nixl", Api::kChat, kChatBody);
  const Built prefill = legs.make(LegPart::kPrefill);
  expect_one_token_chat(prefill);
  EXPECT_EQ(prefill.at("kv_transfer_params"),
            R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
            R"("remote_block_ids":null,"remote_host":null,"remote_port":null})");
  const std::string params =
      R"({"do_remote_prefill":true, "remote_block_ids":[[1,2]],"big":9223372036854775807})";
  const auto got = harvest(nixl, Api::kChat,
                           R"({"choices":[{"finish_reason":"length"}],"kv_transfer_params":)" +
                               params + R"(,"usage":{"prompt_tokens":9,"completion_tokens":1}})");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->params, params);
  EXPECT_EQ(got->truth.counts.prompt, 9);
  const Built decode = legs.make(LegPart::kDecode, &*got);
  EXPECT_NE(decode.text.find("\"kv_transfer_params\":" + params), std::string::npos);
  EXPECT_EQ(decode.at("max_tokens"), "50");
  EXPECT_EQ(decode.at("stream_options"), R"({"include_usage":true})");
  // None came back: decode computes the prompt itself.
  const auto none = harvest(nixl, Api::kChat, R"({"choices":[],"kv_transfer_params":null})");
  EXPECT_EQ(legs.make(LegPart::kDecode, &*none).text, kChatBody);
  // The client is gone: one token lets prefill's blocks go.
  const Built release = legs.make(LegPart::kRelease, &*got);
  expect_one_token_chat(release);
  EXPECT_NE(release.text.find(params), std::string::npos);
}

TEST(Connectors, VllmOtherApisAreBoundInTheirOwnFields) {
  const Built responses =
      Legs("vllm-nixl", Api::kResponses, R"({"input":"a","max_output_tokens":9,"stream":true})")
          .make(LegPart::kPrefill);
  EXPECT_EQ(responses.at("max_output_tokens"), "1");
  EXPECT_EQ(responses.at("max_tokens"), "none");
  EXPECT_EQ(responses.at("stream"), "false");
  const Built inference =
      Legs("vllm-nixl", Api::kInference,
           R"({"token_ids":[1,2],"sampling_params":{"max_tokens":7,"min_tokens":2}})")
          .make(LegPart::kPrefill);
  EXPECT_EQ(inference.at("sampling_params"), R"({"max_tokens":1})");
  const Built chat = Legs("vllm-nixl", Api::kChat, R"({"messages":[]})").make(LegPart::kPrefill);
  EXPECT_EQ(chat.at("max_completion_tokens"), "none");
}

TEST(Connectors, VllmHeaders) {
  Legs legs("vllm-nixl", Api::kChat, kChatBody);
  using Headers = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(leg_headers(row("vllm-nixl"), LegPart::kDecode, legs.values),
            (Headers{{"X-Request-Id", "req-1"}}));
  legs.values.dp_rank = 2;
  EXPECT_EQ(leg_headers(row("vllm-nixl"), LegPart::kPrefill, legs.values),
            (Headers{{"X-Request-Id", "req-1"}, {"X-data-parallel-rank", "2"}}));
}

TEST(Connectors, VllmNixlPushGoesTogetherOnceTheIdentityIsKnown) {
  const Connector& push = row("vllm-nixl-push");
  EXPECT_EQ(push.order, LegOrder::kTogether);
  EXPECT_EQ(push.identity, IdentitySource::kPrefillReply);
  Legs legs("vllm-nixl-push", Api::kChat, kChatBody);
  EXPECT_EQ(legs.make(LegPart::kDecode).at("kv_transfer_params"),
            R"({"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":"engine-1",)"
            R"("remote_host":"10.0.0.7","remote_port":5600,"tp_size":2,)"
            R"("remote_request_id":"req-1"})");
  legs.values.identity = {};
  EXPECT_FALSE(legs.try_make(LegPart::kDecode));
  const auto probe = parse_json(identity_probe(push, "m\"x"));
  ASSERT_TRUE(probe);
  EXPECT_EQ(probe->find("model")->as_string(), "m\"x");
  EXPECT_EQ(probe->find("max_tokens")->as_integer(), 1);
  EXPECT_TRUE(probe->find("kv_transfer_params")->find("do_remote_decode")->as_bool());
  const auto answer =
      harvest(push, Api::kCompletions,
              R"({"kv_transfer_params":{"remote_engine_id":"e","remote_host":"h","remote_port":5,)"
              R"("tp_size":4,"transfer_mode":"push"}})");
  const auto identity = identity_of(*answer);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->engine_id, "e");
  EXPECT_EQ(identity->host, "h");
  EXPECT_EQ(identity->port, "5");
  EXPECT_EQ(identity->tp_size, "4");
}

TEST(Connectors, VllmMooncakeMeetsOnATransferId) {
  const Connector& mooncake = row("vllm-mooncake");
  EXPECT_EQ(mooncake.order, LegOrder::kTogether);
  EXPECT_EQ(mooncake.identity, IdentitySource::kBootstrapQuery);
  EXPECT_EQ(mooncake.bootstrap_port, 8998);
  const Legs legs("vllm-mooncake", Api::kChat, kChatBody);
  const std::string& id = legs.values.transfer_id;
  EXPECT_TRUE(id.starts_with("xfer-")) << id;
  EXPECT_EQ(id.size(), 5U + 36U);
  EXPECT_EQ(id[5 + 14], '4');
  const Built prefill = legs.make(LegPart::kPrefill);
  expect_one_token_chat(prefill);
  EXPECT_EQ(prefill.at("kv_transfer_params"),
            R"({"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":")" + id + "\"}");
  EXPECT_EQ(legs.make(LegPart::kDecode).at("kv_transfer_params"),
            R"({"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":")" + id +
                R"(","remote_bootstrap_addr":"http://10.0.0.7:8998","remote_engine_id":)"
                R"("engine-1"})");
}

TEST(Connectors, MoriioReadingTakesWhatPrefillNamedAndHowManyRanksItHas) {
  const Connector& moriio = row("vllm-moriio");
  EXPECT_EQ(moriio.order, LegOrder::kPrefillFirst);
  const Legs legs("vllm-moriio", Api::kChat, kChatBody);
  const std::string& id = legs.values.transfer_id;
  EXPECT_TRUE(id.starts_with("tx-")) << id;
  const Built prefill = legs.make(LegPart::kPrefill);
  expect_one_token_chat(prefill);
  EXPECT_EQ(prefill.at("kv_transfer_params"),
            R"({"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":")" + id +
                R"(","remote_engine_id":null,"remote_block_ids":null,"remote_host":null,)"
                R"("remote_port":null})");
  const auto harvested = harvest(
      moriio, Api::kChat,
      R"({"choices":[],"kv_transfer_params": {"do_remote_prefill":true,"remote_block_ids":[[9]]} })");
  ASSERT_TRUE(harvested);
  EXPECT_EQ(legs.make(LegPart::kDecode, &*harvested).at("kv_transfer_params"),
            R"({"remote_dp_size":4,"do_remote_prefill":true,"remote_block_ids":[[9]]})");
  // Nothing was named: decode computes the prompt itself.
  for (const char* nothing : {R"({"kv_transfer_params":{}})", R"({"kv_transfer_params":null})"}) {
    const auto none = harvest(moriio, Api::kChat, nothing);
    EXPECT_EQ(legs.make(LegPart::kDecode, &*none).at("kv_transfer_params"), "none") << nothing;
  }
}

TEST(Connectors, MoriioWritingTellsEachSideWhereTheOtherIs) {
  const Connector& moriio = row("vllm-moriio-write");
  EXPECT_EQ(moriio.order, LegOrder::kTogether);
  EXPECT_EQ(moriio.bootstrap_port, 6301);
  EXPECT_EQ(moriio.notify_port, 61005);
  Legs legs("vllm-moriio-write", Api::kChat, kChatBody);
  const std::string& id = legs.values.transfer_id;
  const Built prefill = legs.make(LegPart::kPrefill);
  expect_one_token_chat(prefill);
  EXPECT_EQ(prefill.at("kv_transfer_params"),
            R"({"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":")" + id +
                R"(","remote_engine_id":null,"remote_block_ids":null,"remote_host":"10.0.0.8",)"
                R"("remote_port":6302,"remote_handshake_port":6302,"remote_notify_port":61006,)"
                R"("remote_tp_size":4,"remote_dp_size":2,"remote_dp_rank":1})");
  EXPECT_EQ(legs.make(LegPart::kDecode).at("kv_transfer_params"),
            R"({"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":")" + id +
                R"(","remote_engine_id":null,"remote_block_ids":null,"remote_host":"10.0.0.7",)"
                R"("remote_port":6301,"remote_handshake_port":6301,"remote_notify_port":61005,)"
                R"("remote_tp_size":2,"remote_dp_size":4,"remote_dp_rank":3})");
  EXPECT_EQ(pair_request_id(*legs.values.prefill_side, *legs.values.decode_side, "r1"),
            "___prefill_addr_host:10.0.0.7,handshake:6301,notify:61005"
            "___decode_addr_host:10.0.0.8,handshake:6302,notify:61006_r1");
  legs.values.decode_side.reset();
  EXPECT_FALSE(legs.try_make(LegPart::kPrefill));
}

TEST(Connectors, TrtllmContextFirst) {
  const Connector& trtllm = row("trtllm");
  EXPECT_EQ(trtllm.order, LegOrder::kPrefillFirst);
  const Legs chat("trtllm", Api::kChat, kChatBody);
  const std::string id = std::to_string(*chat.values.global_id);
  EXPECT_GE(*chat.values.global_id, int64_t{1} << 42);
  const Built prefill = chat.make(LegPart::kPrefill);
  EXPECT_EQ(prefill.at("disaggregated_params"),
            R"({"request_type":"context_only","disagg_request_id":)" + id + "}");
  EXPECT_EQ(prefill.at("stream"), "false");
  const auto got =
      harvest(trtllm, Api::kChat,
              R"({"choices":[{"index":0,"finish_reason":"length","disaggregated_params":{)"
              R"("request_type":"context_only","ctx_request_id":9223372036854775807,)"
              R"("first_gen_tokens":[7]}}],"prompt_token_ids":[1, 2,3],)"
              R"("usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}})");
  ASSERT_TRUE(got);
  EXPECT_FALSE(got->is_answer);
  const Built decode = chat.make(LegPart::kDecode, &*got);
  EXPECT_EQ(decode.at("disaggregated_params"),
            R"({"ctx_usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4},)"
            R"("request_type":"generation_only","ctx_request_id":9223372036854775807,)"
            R"("first_gen_tokens":[7]})");
  EXPECT_NE(decode.text.find(R"("prompt_token_ids":[1, 2,3])"), std::string::npos);
  EXPECT_NE(decode.at("messages"), "none");
  const Legs completions("trtllm", Api::kCompletions, R"({"prompt":"abc","max_tokens":5})");
  EXPECT_EQ(completions.make(LegPart::kDecode, &*got).at("prompt"), "[1,2,3]");
  EXPECT_FALSE(chat.try_make(LegPart::kDecode));  // nothing came back
  EXPECT_EQ(chat.try_make(LegPart::kDecode).error().status, 502);
}

TEST(Connectors, TrtllmContextThatFinishedIsTheAnswer) {
  const auto ended = [](const std::string& reason) {
    const auto got = harvest(row("trtllm"), Api::kChat,
                             R"({"choices":[{"finish_reason":")" + reason + R"("}]})");
    return got && got->is_answer;
  };
  EXPECT_TRUE(ended("stop"));
  EXPECT_FALSE(ended("length"));
  EXPECT_FALSE(ended("not_finished"));
  // At the top level too.
  const auto top = harvest(row("trtllm"), Api::kChat,
                           R"({"choices":[],"disaggregated_params":{"ctx_request_id":1}})");
  EXPECT_EQ(top->params, R"({"request_type":"generation_only","ctx_request_id":1})");
}

TEST(Connectors, TrtllmGenerationFirst) {
  const Connector& first = row("trtllm-gen-first");
  EXPECT_EQ(first.order, LegOrder::kTogether);
  const Legs legs("trtllm-gen-first", Api::kChat, kChatBody);
  const std::string id = std::to_string(*legs.values.global_id);
  EXPECT_EQ(
      legs.make(LegPart::kPrefill).at("disaggregated_params"),
      R"({"request_type":"context_only","disagg_request_id":)" + id + R"(,"schedule_style":1})");
  EXPECT_EQ(legs.make(LegPart::kDecode).at("disaggregated_params"),
            R"({"request_type":"generation_only","ctx_request_id":)" + id +
                R"(,"disagg_request_id":)" + id +
                R"(,"schedule_style":1,"ctx_info_endpoint":"10.0.0.7:7777","ctx_dp_rank":3})");
  Legs unknown("trtllm-gen-first", Api::kChat, kChatBody);
  unknown.values.context_dp_rank.reset();
  EXPECT_TRUE(unknown.make(LegPart::kDecode)
                  .at("disaggregated_params")
                  .ends_with(R"("ctx_dp_rank":null})"));
}

TEST(Connectors, SharedStorageNeedsNoParams) {
  EXPECT_EQ(row("shared-storage").order, LegOrder::kPrefillFirst);
  const Legs legs("shared-storage", Api::kCompletions,
                  R"({"prompt":"a","n":4,"best_of":5,"max_tokens":9})");
  const Built prefill = legs.make(LegPart::kPrefill);
  EXPECT_EQ(prefill.text, R"({"stream":false,"prompt":"a","n":1,"best_of":1,"max_tokens":1})");
  EXPECT_EQ(legs.make(LegPart::kDecode).text, R"({"prompt":"a","n":4,"best_of":5,"max_tokens":9})");
}

TEST(Connectors, PlainTouchesNothing) {
  const Legs legs("plain", Api::kChat, kChatBody);
  EXPECT_EQ(legs.make(LegPart::kAlone).text, kChatBody);
}

TEST(Connectors, ClientsDoNotSetWhatIsOurs) {
  const std::string body = R"({"kv_transfer_params":{"remote_host":"10.0.0.1"},"bootstrap_room":5,)"
                           R"("disaggregated_params":{},"prompt":"a"})";
  EXPECT_EQ(Legs("vllm-nixl", Api::kCompletions, body).make(LegPart::kAlone).text,
            R"({"bootstrap_room":5,"disaggregated_params":{},"prompt":"a"})");
  const Legs sglang("sglang", Api::kCompletions, body);
  EXPECT_EQ(sglang.make(LegPart::kPrefill).at("bootstrap_room"),
            std::to_string(sglang.values.rooms[0]));
  EXPECT_EQ(sglang.make(LegPart::kAlone).at("bootstrap_room"), "none");
}

TEST(Connectors, UsageIsAskedForWhereTheClientDidNot) {
  Legs legs("plain", Api::kChat, R"({"messages":[],"stream":true,"stream_options":null})");
  legs.values.ask_usage = true;
  EXPECT_EQ(legs.make(LegPart::kAlone).at("stream_options"), R"({"include_usage":true})");
  Legs set("plain", Api::kChat,
           R"({"messages":[],"stream":true,"stream_options":{"x":1,"include_usage":false}})");
  set.values.ask_usage = true;
  EXPECT_EQ(set.make(LegPart::kAlone).at("stream_options"), R"({"x":1,"include_usage":true})");
  Legs whole("plain", Api::kChat, R"({"messages":[]})");
  whole.values.ask_usage = true;
  EXPECT_EQ(whole.make(LegPart::kAlone).text, R"({"messages":[]})");
}

TEST(Connectors, WhoMayGoOverAPair) {
  const auto may = [](std::string_view connector, Api api, std::string_view body) {
    const auto facts = read_facts(api, body);
    return facts && may_pair(row(connector), *facts);
  };
  const char* const two = R"({"messages":[],"n":2})";
  EXPECT_TRUE(may("sglang", Api::kChat, two));
  EXPECT_FALSE(may("vllm-nixl", Api::kChat, two));  // its KV is handed over once
  EXPECT_TRUE(may("vllm-nixl", Api::kChat, R"({"messages":[],"n":1})"));
  EXPECT_FALSE(may("vllm-nixl", Api::kCompletions, R"({"prompt":["a","b"]})"));
  EXPECT_FALSE(may("vllm-nixl", Api::kCompletions, R"({"prompt":"a","best_of":3})"));
  EXPECT_FALSE(may("vllm-nixl", Api::kChat, R"({"messages":[],"prompt_logprobs":0})"));
  EXPECT_TRUE(may("shared-storage", Api::kChat, two));
  EXPECT_FALSE(may("plain", Api::kChat, R"({"messages":[]})"));
  EXPECT_FALSE(may("trtllm", Api::kResponses, R"({"input":"a"})"));
  EXPECT_FALSE(may("vllm-nixl", Api::kOther, R"({"input":"a"})"));
}

TEST(Mint, RoomsGoToTheWantedRank) {
  const auto facts = read_facts(Api::kChat, R"({"messages":[],"n":50})");
  GlobalIds ids(1);
  const LegValues values = mint(row("sglang"), *facts, counting(), ids, {}, 8, 5);
  ASSERT_EQ(values.rooms.size(), 50U);
  std::set<int64_t> different;
  for (const int64_t room : values.rooms) {
    EXPECT_GE(room, 0);
    EXPECT_LT(room, INT64_MAX);
    EXPECT_EQ(room % 8, 5);
    different.insert(room);
  }
  EXPECT_EQ(different.size(), 50U);
  for (const uint64_t bits : {uint64_t{0}, ~uint64_t{0}}) {
    const LegValues edge =
        mint(row("sglang"), *read_facts(Api::kChat, "{}"), [&] { return bits; }, ids, {}, 3, 2);
    EXPECT_EQ(edge.rooms[0] % 3, 2);
    EXPECT_LT(edge.rooms[0], INT64_MAX);
    EXPECT_GE(edge.rooms[0], 0);
  }
}

TEST(Mint, GlobalIdsGrowWhateverTheClockDoes) {
  GlobalIds ids(1023);
  int64_t last = int64_t{1} << 42;
  for (int i = 0; i < 20000; ++i) {
    const int64_t id = ids.next(std::chrono::milliseconds(i < 10000 ? 1000 : 999));
    EXPECT_GE(id, last);
    EXPECT_EQ((id >> 12) & 1023, 1023);
    last = id + 1;
  }
  EXPECT_EQ(GlobalIds(1024).next(std::chrono::milliseconds(1764460800000)),
            int64_t{1764460800000} << 22);
}

}  // namespace
}  // namespace tandem::router
