// Every leg that a connector builds, given to a mock of its engine: it must take the two legs of a
// request for two ends of the same handoff.
#include <algorithm>

#include <gtest/gtest.h>

#include "mock/dialects.h"
#include "router/connectors/leg_body.h"

namespace tandem::router {
namespace {

struct Pairing {
  std::string_view connector;
  mock::Dialect dialect;
};
constexpr Pairing kPairings[] = {
    {"tandem", mock::Dialect::kTandem},
    {"sglang", mock::Dialect::kSglang},
    {"vllm-nixl", mock::Dialect::kVllmNixl},
    {"vllm-nixl-push", mock::Dialect::kVllmNixlPush},
    {"vllm-mooncake", mock::Dialect::kVllmMooncake},
    {"vllm-moriio", mock::Dialect::kVllmMoriio},
    {"vllm-moriio-write", mock::Dialect::kVllmMoriioWrite},
    {"trtllm", mock::Dialect::kTrtllm},
    {"trtllm-gen-first", mock::Dialect::kTrtllm},
};

struct Asked {
  Api api;
  mock::Api mock_api;
  std::string_view body;
  std::string_view finish = "length";
};
constexpr Asked kAsked[] = {
    {Api::kChat, mock::Api::kChat,
     R"({"model":"m","messages":[{"role":"user","content":"a question"}],"stream":true,)"
     R"("stream_options":{"include_usage":true},"max_completion_tokens":20,"min_tokens":2})"},
    {Api::kChat, mock::Api::kChat, R"({"messages":[{"role":"user","content":"two"}],"n":2})"},
    {Api::kCompletions, mock::Api::kCompletions, R"({"prompt":"a text","max_tokens":7})"},
    {Api::kCompletions, mock::Api::kCompletions, R"({"prompt":["one","another"]})"},
    {Api::kCompletions, mock::Api::kCompletions, R"({"prompt":["alone"]})"},
    {Api::kCompletions, mock::Api::kCompletions, R"({"prompt":[1,2,3,4,5]})"},
    {Api::kResponses, mock::Api::kResponses, R"({"input":"a text","max_output_tokens":9})"},
    {Api::kMessages, mock::Api::kMessages,
     R"({"messages":[{"role":"user","content":"x"}],"max_tokens":9,"stream":true})"},
    {Api::kGenerate, mock::Api::kGenerate,
     R"({"input_ids":[[1,2],[3,4],[5]],"sampling_params":{"max_new_tokens":5}})"},
    {Api::kGenerate, mock::Api::kGenerate, R"({"text":"x","sampling_params":{"n":2}})"},
};

mock::Handoff handoff_of(const Pairing& pairing, mock::Role role, const Asked& asked,
                         const BodyPieces& body, const mock::Identity& identity,
                         const std::string& request_id, mock::MockRequest* read = nullptr) {
  mock::MockOptions options;
  options.dialect = pairing.dialect;
  options.role = role;
  auto request = mock::read_request(asked.mock_api, body.str());
  EXPECT_TRUE(request) << body.str();
  if (!request) return {};
  auto handoff = mock::read_handoff(options, *request, request_id, identity);
  EXPECT_TRUE(handoff) << pairing.connector << " " << body.str() << ": "
                       << (handoff ? "" : handoff.error().message);
  if (read != nullptr) *read = std::move(*request);
  return handoff ? std::move(*handoff) : mock::Handoff{};
}

// What the mock answers to a prefill leg.
Result<Harvest> harvested(const Connector& connector, const Pairing& pairing, const Asked& asked,
                          const mock::MockRequest& request, const mock::Handoff& handoff,
                          const mock::Identity& identity) {
  mock::MockOptions options;
  options.dialect = pairing.dialect;
  JsonValue choice = JsonValue::object();
  choice.set("finish_reason", JsonValue::string(std::string(asked.finish)));
  JsonValue reply = JsonValue::object();
  reply.set("choices", JsonValue::array({std::move(choice)}));
  mock::add_prefill_result(options, request, handoff, identity, {77, 3, 1}, reply);
  if (connector.harvest == HarvestKind::kTandemReport)
    reply =
        *parse_json(R"({"object":"tandem.prefill","usage":{"prompt_tokens":3,"cached_tokens":1}})");
  return harvest(connector, asked.api, reply.dump());
}

std::string envelope(LegPart leg) {
  return std::string(R"({"leg":")") + (leg == LegPart::kPrefill ? "prefill" : "decode") +
         R"(","handoff":{"id":"h-1","prefill_address":"mock:127.0.0.1:7001"}})";
}

class Conformance : public testing::TestWithParam<Pairing> {};

TEST_P(Conformance, BothLegsMeet) {
  const Pairing& pairing = GetParam();
  const Connector& connector = **find_connector(pairing.connector);
  mock::Identity identity;
  identity.engine_id = "engine-1";
  identity.bootstrap_host = "127.0.0.1";
  identity.bootstrap_port = 7001;
  uint64_t bits = 99;
  GlobalIds ids(3);
  int paired = 0;
  for (const Asked& asked : kAsked) {
    const auto body = std::make_shared<const std::string>(asked.body);
    const auto facts = read_facts(asked.api, *body);
    ASSERT_TRUE(facts);
    if (!may_pair(connector, *facts)) continue;
    ++paired;
    LegValues values = mint(
        connector, *facts, [&] { return bits = bits * 6364136223846793005U + 1; }, ids,
        std::chrono::milliseconds(1764460800000));
    values.request_id = "req-1";
    values.bootstrap_host = identity.bootstrap_host;
    values.bootstrap_port = identity.bootstrap_port;
    values.identity = {identity.engine_id, identity.bootstrap_host, "7001", "1"};
    values.context_endpoint = "127.0.0.1:7001";
    values.prefill_side =
        SideAddress{.host = "127.0.0.1", .handshake_port = 7001, .notify_port = 7002};
    values.decode_side =
        SideAddress{.host = "127.0.0.2", .handshake_port = 7003, .notify_port = 7004};
    if ((connector.mint & kMintPairId) != 0)
      values.request_id = pair_request_id(*values.prefill_side, *values.decode_side, "req-1");
    values.tandem = envelope(LegPart::kPrefill);
    const auto prefill = make_leg_body(connector, LegPart::kPrefill, body, *facts, values);
    ASSERT_TRUE(prefill) << prefill.error().message;
    mock::MockRequest request;
    const mock::Handoff first = handoff_of(pairing, mock::Role::kPrefill, asked, *prefill, identity,
                                           values.request_id, &request);
    EXPECT_EQ(first.kind, mock::Handoff::Kind::kPrefill);
    if (connector.opaque) EXPECT_FALSE(request.stream);

    const auto got = harvested(connector, pairing, asked, request, first, identity);
    ASSERT_TRUE(got) << got.error().message;
    values.tandem = envelope(LegPart::kDecode);
    const Harvest* const known = connector.order == LegOrder::kPrefillFirst ? &*got : nullptr;
    const auto decode = make_leg_body(connector, LegPart::kDecode, body, *facts, values, known);
    ASSERT_TRUE(decode) << decode.error().message;
    mock::MockRequest second_request;
    const mock::Handoff second = handoff_of(pairing, mock::Role::kDecode, asked, *decode, identity,
                                            values.request_id, &second_request);
    EXPECT_EQ(second.kind, mock::Handoff::Kind::kDecode);
    EXPECT_EQ(second.ids, first.ids);
    EXPECT_EQ(second.ids.size(), batch_size(connector, *facts));
    EXPECT_EQ(second.host, "127.0.0.1");
    EXPECT_EQ(second.port, 7001);
    // Both legs see the same prompt; decode sees the client's limits.
    EXPECT_EQ(second_request.prompts, request.prompts);
    EXPECT_EQ(second_request.stream, facts->stream);
    if (facts->max_tokens) EXPECT_EQ(second_request.max_tokens, *facts->max_tokens);
    if (!second.engine_id.empty()) EXPECT_EQ(second.engine_id, identity.engine_id);
  }
  EXPECT_GE(paired, 2);
}

// A lone worker is asked for no handoff, even if the client tries to make it join one.
TEST_P(Conformance, ALoneLegIsNoHandoff) {
  const Pairing& pairing = GetParam();
  const Connector& connector = **find_connector(pairing.connector);
  if (!connector.opaque) return;  // its envelope says so
  const Asked asked{Api::kCompletions, mock::Api::kCompletions,
                    R"({"prompt":"a","bootstrap_room":7,"bootstrap_host":"x","bootstrap_port":1,)"
                    R"("kv_transfer_params":{"do_remote_prefill":true,"remote_host":"x"},)"
                    R"("disaggregated_params":{"request_type":"generation_only"}})"};
  const auto body = std::make_shared<const std::string>(asked.body);
  const auto facts = read_facts(asked.api, *body);
  const auto alone = make_leg_body(connector, LegPart::kAlone, body, *facts, {});
  ASSERT_TRUE(alone);
  EXPECT_EQ(handoff_of(pairing, mock::Role::kUnified, asked, *alone, {}, "req-1").kind,
            mock::Handoff::Kind::kNone);
}

INSTANTIATE_TEST_SUITE_P(Engines, Conformance, testing::ValuesIn(kPairings),
                         [](const testing::TestParamInfo<Pairing>& info) {
                           std::string name(info.param.connector);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tandem::router
