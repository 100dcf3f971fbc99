#include "cli/bench_flags.h"

#include <algorithm>
#include <charconv>

#include "base/environment.h"
#include "base/json_value.h"
#include "cli/bench_trace.h"
#include "cli/read_trace.h"

namespace tandem::cli {

namespace {

Result<double> parse_number(const std::string& name, const std::string& text, double least) {
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || !(value >= least) ||
      value > 1e9)
    return make_error(400, "invalid_option", "--" + name + " needs a number, not '" + text + "'.");
  return value;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c != ',' && c != ' ') {
      out.back().push_back(c);
    } else if (!out.back().empty()) {
      out.emplace_back();
    }
  }
  if (out.back().empty()) out.pop_back();
  return out;
}

Status set_lengths(loadgen::Lengths& target, const std::string& text) {
  if (text.empty()) return {};
  TANDEM_TRY(lengths, loadgen::parse_lengths(text));
  target = lengths;
  return {};
}

Result<Chosen> choose_trace(const BenchFlags& flags, bool repeat) {
  BenchTraceOptions asked;
  asked.shrink = flags.shrink;
  asked.limit = static_cast<size_t>(flags.limit);
  asked.max_think = to_seconds(flags.max_think);
  if (!flags.turns.empty()) {
    TANDEM_TRY(most, parse_number("turns", flags.turns, 1));
    asked.turns = static_cast<size_t>(most);
  }
  if (!flags.output.empty()) {
    TANDEM_TRY(tokens, parse_number("output", flags.output, 1));
    asked.output_tokens = static_cast<int32_t>(std::min(tokens, double{loadgen::kMostTokens}));
  }
  TANDEM_TRY(text, read_trace_file(flags.trace));
  TANDEM_TRY(trace, read_bench_trace(text, asked));
  Chosen chosen;
  chosen.words = trace.form + ", " + std::to_string(trace.sessions.size()) + " of them";
  if (flags.shrink > 1) chosen.words += ", lengths divided by " + std::to_string(flags.shrink);
  chosen.dataset = loadgen::listed_dataset(std::move(trace.sessions), repeat, trace.times);
  return chosen;
}

Result<Chosen> choose_agent(const BenchFlags& flags, uint64_t seed) {
  loadgen::AgentOptions made;
  made.seed = seed;
  TANDEM_CHECK(set_lengths(made.system, flags.prefix));
  TANDEM_CHECK(set_lengths(made.question, flags.input));
  TANDEM_CHECK(set_lengths(made.tool_result, flags.tool_result));
  TANDEM_CHECK(set_lengths(made.output, flags.output));
  TANDEM_CHECK(set_lengths(made.turns, flags.turns));
  TANDEM_TRY(think, parse_number("think", flags.think, 0));
  made.think_median = think;
  return Chosen{loadgen::agent_dataset(made),
                "agent sessions, system prompt " + flags.prefix + " tokens"};
}

Status add_extra(loadgen::BodyOptions& body, const BenchFlags& flags) {
  JsonValue extra = JsonValue::object();
  if (!flags.temperature.empty()) {
    TANDEM_TRY(temperature, parse_number("temperature", flags.temperature, 0));
    extra.set("temperature", JsonValue::real(temperature));
  }
  if (flags.ignore_eos) extra.set("ignore_eos", JsonValue::boolean(true));
  if (!flags.extra_body.empty()) {
    const auto json = parse_json(flags.extra_body);
    if (!json || !json->is_object())
      return make_error(400, "invalid_option", "--extra-body needs a JSON object.");
    for (const auto& [key, value] : json->members()) extra.set(key, value);
  }
  const std::string text = extra.dump();
  body.extra = text.substr(1, text.size() - 2);
  return {};
}

}  // namespace

void BenchFlags::declare(config::Options& options) {
  options.positional(url, "URL", "the server, without /v1", false);
  options.value(model, "model", "NAME", "its model; empty: the first of its /v1/models");
  options.choice(api, "api", {"chat", "completions"},
                 "streams from /v1/chat/completions or /v1/completions");
  options.value(api_key, "api-key", "KEY",
                "sent as Authorization: Bearer KEY; else the environment's TANDEM_API_KEY or "
                "OPENAI_API_KEY");
  options.list(headers, "header", "NAME:VALUE", "a header of every request");
  declare_load(options);
  declare_dataset(options);
  options.list(goodput, "goodput", "MEASURE:TIME",
               "objectives of a good request (repeated, or with commas): ttft:500ms, tpot:50ms, "
               "itl:200ms (its longest gap), e2e:10s");
  options.value(percentiles, "percentiles", "LIST", "of the latencies");
  options.value(temperature, "temperature", "T", "of sampling; empty: the server's own");
  options.flag(ignore_eos, "ignore-eos",
               "asks for answers of full length (servers of Tandem, vLLM, SGLang, llama.cpp)");
  options.value(extra_body, "extra-body", "JSON", "members of an object put into every request");
  options.value(max_tokens_name, "max-tokens-name", "NAME",
                "of the field that limits an answer (max_completion_tokens for some servers)");
  options.flag(no_usage, "no-usage",
               "does not ask for token counts (stream_options); pieces stand for tokens");
  options.flag(no_probe, "no-probe",
               "skips the two short requests that find out how the server counts tokens; a word "
               "is then taken for a token");
  options.value(json, "json", "FILE", "the report as JSON");
  options.value(html, "html", "FILE", "the report as a page with plots that needs nothing else");
  options.value(save_requests, "save-requests", "FILE",
                "each request's figures as a line of JSON (no text)");
  options.flag(quiet, "quiet", "no progress, only the report");
  options.example("tandem bench http://127.0.0.1:8000 --concurrency 16 --requests 200");
  options.example(
      "tandem bench https://example.org --rate 4 --duration 60s --goodput ttft:500ms,tpot:50ms "
      "--html report.html");
  options.example(
      "tandem bench --dataset shared-prefix --prefixes 16 --prefix 2048 --input 64 --output 64");
  options.example(
      "tandem bench --trace bench/data/agent_sessions.jsonl.zst --shrink 32 --concurrency 8");
}

void BenchFlags::declare_load(config::Options& options) {
  options.value(concurrency, "concurrency", "N",
                "closed loop: clients that ask again when they were answered (8 if neither this "
                "nor --rate is given); with --rate: no more are open at once",
                0, 1 << 20);
  options.value(rate, "rate", "R", "open loop: requests (or sessions) a second, whatever happens");
  options.choice(arrivals, "arrivals", {"poisson", "constant", "gamma", "burst"},
                 "how an open loop's requests come");
  options.value(burstiness, "burstiness", "B",
                "shape of gamma arrivals: below 1 burstier than Poisson, above 1 more even");
  options.value(burst, "burst-size", "N", "requests that come together with --arrivals burst", 1,
                1 << 20);
  options.value(requests, "requests", "N",
                "how many in all; 0: as long as --duration or the data last (100 without either)",
                0, 1 << 30);
  options.value(duration, "duration", "TIME", "no request is sent later; 0: no limit");
  options.value(grace, "grace", "TIME", "for answers that are open then; later ones are cut off");
  options.value(timeout, "timeout", "TIME", "for a request's head, and between two of its pieces");
  options.value(warmup, "warmup", "N", "requests before the measured ones", 0, 1 << 20);
  options.value(seed, "seed", "N",
                "of everything random; the same seed sends the same prompts, which a server may "
                "still hold in its cache",
                0, 1 << 30);
}

void BenchFlags::declare_dataset(config::Options& options) {
  options.choice(dataset, "dataset", {"random", "shared-prefix", "agent"},
                 "random: no two prompts alike. shared-prefix: --prefixes system prompts of "
                 "--prefix tokens with questions of --input tokens. agent: sessions that grow by "
                 "the server's answers and by tool results");
  options.value(trace, "trace", "FILE",
                "instead: Mooncake's JSON lines, agent sessions, Azure's CSV, or lines with "
                "\"prompt\" or \"messages\"; plain or zstd");
  options.value(input, "input", "LENGTHS",
                "tokens of prompts (random: 512), questions (shared-prefix: 64; agent): N, A-B, "
                "normal:MEAN,SIGMA or lognormal:MEDIAN,SIGMA");
  options.value(output, "output", "LENGTHS", "tokens of answers (128; agent: lognormal:55,0.9)");
  options.value(prefix, "prefix", "LENGTHS",
                "tokens of shared-prefix's and agent's system prompts");
  options.value(prefixes, "prefixes", "N", "system prompts of shared-prefix", 1, 1 << 20);
  options.value(questions, "questions", "N", "questions for each; 0: without end", 0, 1 << 20);
  options.value(turns, "turns", "LENGTHS",
                "of an agent's session (lognormal:10,1.1); of a trace: N at most");
  options.value(tool_result, "tool-result", "LENGTHS",
                "tokens that a tool gives an agent (lognormal:90,1.8)");
  options.value(think, "think", "SECONDS",
                "median time between an answer and the next turn of agents; of a trace's own times "
                "a factor");
  options.value(max_think, "max-think", "TIME", "longest such pause of a trace");
  options.value(shrink, "shrink", "N", "every length of a trace is divided by this", 1, 512);
  options.value(limit, "limit", "N", "only the first requests or sessions of a trace; 0: all", 0,
                1 << 30);
  options.value(speed, "speed", "FACTOR", "a trace's requests come so much faster");
  options.flag(token_ids, "token-ids",
               "prompts as random token ids, of exact length (--api completions)");
  options.value(vocabulary, "vocabulary", "N", "ids are below this, from 100 on", 101, 1 << 24);
}

Result<Chosen> choose_dataset(const BenchFlags& flags, uint64_t seed, bool repeat) {
  if (!flags.trace.empty()) return choose_trace(flags, repeat);
  if (flags.dataset == "agent") return choose_agent(flags, seed);
  const std::string output = flags.output.empty() ? "128" : flags.output;
  if (flags.dataset == "shared-prefix") {
    loadgen::SharedPrefixOptions made;
    made.seed = seed;
    made.prefixes = flags.prefixes;
    made.questions = flags.questions;
    const std::string input = flags.input.empty() ? "64" : flags.input;
    TANDEM_CHECK(set_lengths(made.prefix, flags.prefix));
    TANDEM_CHECK(set_lengths(made.question, input));
    TANDEM_CHECK(set_lengths(made.output, output));
    return Chosen{loadgen::shared_prefix_dataset(made),
                  std::to_string(flags.prefixes) + " shared prefixes of " + flags.prefix +
                      " tokens, questions of " + input + ", answers of " + output};
  }
  loadgen::RandomOptions made;
  made.seed = seed;
  const std::string input = flags.input.empty() ? "512" : flags.input;
  TANDEM_CHECK(set_lengths(made.input, input));
  TANDEM_CHECK(set_lengths(made.output, output));
  return Chosen{loadgen::random_dataset(made),
                "random prompts of " + input + " tokens, answers of " + output};
}

Result<loadgen::Target> make_target(const BenchFlags& flags) {
  loadgen::Target target;
  TANDEM_TRY(url, net::parse_url(flags.url));
  target.url = url;
  if (target.url.base.ends_with("/v1")) target.url.base.resize(target.url.base.size() - 3);
  target.body.api = flags.api == "chat" ? loadgen::Api::kChat : loadgen::Api::kCompletions;
  target.path = flags.api == "chat" ? "/v1/chat/completions" : "/v1/completions";
  if (flags.token_ids && flags.api == "chat")
    return make_error(400, "invalid_option", "--token-ids needs --api completions.");
  std::string key = flags.api_key;
  if (key.empty()) key = environment("TANDEM_API_KEY");
  if (key.empty()) key = environment("OPENAI_API_KEY");
  if (!key.empty()) target.headers.add("Authorization", "Bearer " + key);
  for (const std::string& header : flags.headers) {
    const size_t colon = header.find(':');
    if (colon == std::string::npos || colon == 0)
      return make_error(400, "invalid_option", "--header needs NAME:VALUE.");
    const size_t value = header.find_first_not_of(' ', colon + 1);
    target.headers.add(header.substr(0, colon),
                       value == std::string::npos ? "" : header.substr(value));
  }
  target.timeouts.connect = std::chrono::seconds(10);
  target.timeouts.head = flags.timeout;
  target.timeouts.idle_body = flags.timeout;
  target.body.model = flags.model;
  target.body.token_ids = flags.token_ids;
  target.body.id_count = static_cast<uint32_t>(flags.vocabulary) - target.body.least_id;
  target.body.max_tokens_name = flags.max_tokens_name;
  target.body.ask_usage = !flags.no_usage;
  TANDEM_CHECK(add_extra(target.body, flags));
  return target;
}

Result<std::pair<loadgen::Schedule, std::string>> make_schedule(const BenchFlags& flags,
                                                                bool trace_times) {
  loadgen::Schedule made;
  made.requests = flags.requests;
  made.seconds = to_seconds(flags.duration);
  made.grace = to_seconds(flags.grace);
  if (made.requests == 0 && made.seconds <= 0 && flags.trace.empty()) made.requests = 100;
  if (!flags.trace.empty()) {
    TANDEM_TRY(factor, parse_number("think", flags.think, 0));
    made.think_scale = factor;
  }
  made.session_prefix = "bench-" + std::to_string(flags.seed) + "-";
  std::string words;
  if (!flags.rate.empty()) {
    loadgen::ArrivalOptions arrivals;
    TANDEM_TRY(rate, parse_number("rate", flags.rate, 1e-6));
    TANDEM_TRY(burstiness, parse_number("burstiness", flags.burstiness, 1e-3));
    TANDEM_TRY(process, loadgen::parse_arrival_process(flags.arrivals));
    arrivals.rate = rate;
    arrivals.burstiness = burstiness;
    arrivals.process = process;
    arrivals.burst_size = flags.burst;
    arrivals.seed = static_cast<uint64_t>(flags.seed) + 1000003;
    made.arrivals = arrivals;
    words = "open loop, " + flags.rate + " a second, " + flags.arrivals + " arrivals";
  } else if (trace_times && flags.concurrency == 0) {
    TANDEM_TRY(speed, parse_number("speed", flags.speed, 1e-6));
    made.trace_times = true;
    made.speed = speed;
    words = "open loop, the trace's times, speed " + flags.speed;
  } else {
    made.concurrency = flags.concurrency == 0 ? 8 : flags.concurrency;
    return std::pair(made, "closed loop, " + std::to_string(made.concurrency) + " clients");
  }
  if (flags.concurrency > 0) {
    made.most_open = flags.concurrency;
    words += ", " + std::to_string(flags.concurrency) + " open at most";
  }
  return std::pair(made, words);
}

Result<std::vector<double>> percentiles_of(const BenchFlags& flags) {
  std::vector<double> out;
  for (const std::string& word : split(flags.percentiles)) {
    TANDEM_TRY(value, parse_number("percentiles", word, 0));
    out.push_back(std::min(value, 100.0));
  }
  return out;
}

Result<std::vector<loadgen::Objective>> objectives_of(const BenchFlags& flags) {
  std::vector<loadgen::Objective> out;
  for (const std::string& words : flags.goodput) {
    for (const std::string& word : split(words)) {
      TANDEM_TRY(objective, loadgen::parse_objective(word));
      out.push_back(objective);
    }
  }
  return out;
}

}  // namespace tandem::cli
