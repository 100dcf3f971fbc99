// Encoding speed. Set TANDEM_TEXT_REFERENCE (scripts/reference/tokenizer.py model ...) for a real
// vocabulary and TANDEM_BENCH_TEXT for a real text; without them, the small test vocabulary on text
// made of its own words. The floor is one read of the text from memory: tens of GB/s; what counts
// is the distance to other tokenizers.
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>

#include <benchmark/benchmark.h>

#include "base/json_value.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::text {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

const Tokenizer& tokenizer() {
  static const auto kMade = [] {
    const char* directory = std::getenv("TANDEM_TEXT_REFERENCE");
    const std::string path = directory ? std::string(directory) + "/spec.json"
                                       : std::string("src/text/testdata/small_bpe_smollm.json");
    auto json = parse_json(read_file(path));
    auto made = Tokenizer::create(*tokenizer_spec_from_json(*json));
    return *made;
  }();
  return *kMade;
}

const std::string& sample_text() {
  static const std::string kText = [] {
    if (const char* path = std::getenv("TANDEM_BENCH_TEXT")) return read_file(path);
    std::mt19937 engine(1);
    std::string text;
    while (text.size() < (1 << 20)) {
      text += tokenizer().token_bytes(
          static_cast<int32_t>(engine() % static_cast<uint32_t>(tokenizer().vocab_size())));
      if (engine() % 3 == 0) text += ' ';
    }
    return text;
  }();
  return kText;
}

// A conversation's next turn: a long history that was encoded before, and a message more.
void encode_next_turn(benchmark::State& state) {
  const bool cached = state.range(0) != 0;
  const auto made = Tokenizer::create(tokenizer().spec(), cached ? size_t{64} << 20 : 0);
  const auto& special = (*made)->special_tokens();
  const std::string mark(special.empty() ? std::string_view()
                                         : (*made)->token_bytes(special.front()));
  std::string history;
  for (size_t at = 0; at + 4096 < sample_text().size() && history.size() < 400'000; at += 4096)
    history += mark + sample_text().substr(at, 4096);
  (void)(*made)->encode(history, {.parse_special = true});
  int turn = 0;
  for (auto _ : state) {
    const std::string text =
        history + mark + "turn " + std::to_string(turn++) + history.substr(20, 2000);
    benchmark::DoNotOptimize((*made)->encode(text, {.parse_special = true}));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(history.size()));
}
BENCHMARK(encode_next_turn)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

void encode_text(benchmark::State& state) {
  size_t tokens = 0;
  for (auto _ : state) tokens += tokenizer().encode(sample_text()).size();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(sample_text().size()));
  state.counters["tokens"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}
BENCHMARK(encode_text)->Unit(benchmark::kMillisecond);

// Many short pieces of chat: the fixed cost of a call.
void encode_short(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().encode("Hello, how are you today?"));
}
BENCHMARK(encode_short);

void one_long_word(benchmark::State& state) {
  const std::string text(131072, 'Z');
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().encode(text));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(one_long_word)->Unit(benchmark::kMillisecond);

void render_conversation(benchmark::State& state) {
  const auto made = ChatTemplate::parse(
      "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}");
  JsonValue messages = JsonValue::array();
  for (int i = 0; i < 100; ++i) {
    JsonValue message = JsonValue::object();
    message.set("role", JsonValue::string(i % 2 == 0 ? "user" : "assistant"));
    message.set("content", JsonValue::string(std::string(1000, 'x') + " <|end|>"));
    messages.push_back(std::move(message));
  }
  for (auto _ : state)
    benchmark::DoNotOptimize(render_chat(tokenizer(), *made, messages, {}, true));
}
BENCHMARK(render_conversation)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem::text
