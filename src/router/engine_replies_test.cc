#include "router/engine_replies.h"

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

TEST(EngineReplies, ModelsWithTheirContext) {
  const auto models = parse_model_list(
      R"({"object":"list","data":[{"id":"a/b","max_model_len":4096},{"id":"lora"},{"no":1}]})");
  ASSERT_TRUE(models);
  ASSERT_EQ(models->size(), 2U);
  EXPECT_EQ((*models)[0].id, "a/b");
  EXPECT_EQ((*models)[0].context_length, 4096);
  EXPECT_EQ((*models)[1].context_length, 0);
  for (const char* text : {"", "[]", "{}", R"({"data":[]})", R"({"data":7})", "nonsense"})
    EXPECT_FALSE(parse_model_list(text)) << text;
}

TEST(EngineReplies, AServerSaysItsRanksItsSideChannelAndWhichProcessItIs) {
  const auto info = parse_server_info(
      R"({"dp_size":4,"disaggregation_bootstrap_port":8998,"disaggregation_mode":"prefill",
          "random_seed":123456,"internal_states":[{}]})");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->dp_size, 4);
  EXPECT_EQ(info->bootstrap_port, 8998);
  EXPECT_EQ(info->mode, "prefill");
  EXPECT_EQ(info->epoch, "123456");
  EXPECT_EQ(parse_server_info(R"({"disaggregated_params":{"ctx_info_endpoint":["h:1"]}})")
                ->context_endpoint,
            "h:1");
  const auto publishes = parse_server_info(
      R"({"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557},)"
      R"("kv_events_config":"{\"replay_endpoint\":\"tcp://*:5600\"}"})");
  EXPECT_EQ(publishes->kv_events, "tcp://*:5557,tcp://*:5600");
  EXPECT_EQ(parse_server_info(R"({"kv_events":{"endpoint_host":"h","endpoint_port_base":70000}})")
                ->kv_events,
            "");
  const auto context =
      parse_server_info(R"({"disaggregated_params":{"ctx_dp_rank":2,"ctx_info_endpoint":"h:1"}})");
  EXPECT_EQ(context->context_dp_rank, 2);
  EXPECT_EQ(parse_server_info(R"({"ctx_dp_rank":-1})")->context_dp_rank, std::nullopt);
  EXPECT_EQ(parse_server_info("{}")->dp_size, 1);
  EXPECT_EQ(parse_server_info(R"({"dp_size":-3})")->dp_size, 1);
  EXPECT_FALSE(parse_server_info("[]"));
}

TEST(EngineReplies, MooncakeNamesTheEngineOfEveryRank) {
  const auto engines =
      parse_mooncake_query(R"({"1":{"engine_id":"b"},"0":{"engine_id":"a"},"x":{}})");
  ASSERT_TRUE(engines);
  EXPECT_EQ(*engines, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(parse_mooncake_query(R"({"1":{"engine_id":"b"}})")) << "rank 0 is missing";
  EXPECT_FALSE(parse_mooncake_query(R"({"99999999":{"engine_id":"b"}})"));
  EXPECT_FALSE(parse_mooncake_query("{}"));
}

TEST(EngineReplies, LoadInEveryForm) {
  EXPECT_EQ(parse_load_reply(R"({"server_load":7})")->requests, 7);
  EXPECT_EQ(parse_load_reply(R"({"server_load":-7})")->requests, 0);
  const auto ranks = parse_load_reply(
      R"([{"dp_rank":0,"num_reqs":3,"num_waiting_reqs":1,"num_tokens":100},{"num_reqs":2,"num_tokens":5}])");
  EXPECT_EQ(ranks->requests, 5);
  EXPECT_EQ(ranks->tokens, 105);
  EXPECT_EQ(
      parse_load_reply(R"({"loads":[{"num_running_reqs":3,"num_waiting_reqs":4}]})")->requests, 7);
  EXPECT_FALSE(parse_load_reply("{}"));
  EXPECT_FALSE(parse_load_reply("x"));
  const std::vector<std::string_view> running = {"vllm:num_requests_running", "old_running"};
  const std::vector<std::string_view> waiting = {"vllm:num_requests_waiting"};
  const auto metrics = [&](std::string_view text) {
    return parse_load_metrics(text, running, waiting);
  };
  EXPECT_EQ(metrics("# HELP vllm:num_requests_running x\n"
                    "vllm:num_requests_running{engine=\"0\",model_name=\"a } b\"} 3.0\n"
                    "vllm:num_requests_waiting{model_name=\"m\"} 2\n"
                    "vllm:num_requests_running_total 100\n"
                    "vllm:kv_cache_usage_perc{} 0.5")
                ->requests,
            5);
  EXPECT_EQ(metrics("old_running 4\n")->requests, 4);
  EXPECT_EQ(metrics("vllm:num_requests_running NaN\nvllm:num_requests_waiting 1e300\n")->requests,
            1000000000);
  EXPECT_FALSE(metrics("vllm:other 3\n"));
}

}  // namespace
}  // namespace tandem::router
