// text: what tokenizers and chat templates give and how fast, for comparisons with other libraries
// (scripts/reference/token_ids.py, scripts/reference/family_templates.py, bench/tokenize_speed.py).
//
// * bench_text ids FILE < STRINGS: each line is a JSON string; for each a JSON object with its ids,
//   its ids when control tokens are matched ("special"), and what the former decode to ("text").
// * bench_text speed FILE TEXT: MB/s of one thread, the best of several passes over the whole file.
// * bench_text spec FILE: the tokenizer as JSON.
//
// FILE is a model that `tandem worker --model` takes, or a file of one tokenizer: tokenizer.json,
// tekken*.json, *.model* (SentencePiece), or NAME=FILE with lines of base64 and rank, where NAME is
// the pre-tokenizer.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

#include "base/json_value.h"
#include "engine/tokenizer_source.h"
#include "text/chat_template.h"
#include "text/sentencepiece_model.h"
#include "text/tiktoken_file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "weights/checkpoint.h"

namespace {

using tandem::JsonValue;
using tandem::Result;
using tandem::text::Tokenizer;
using tandem::text::TokenizerSpec;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Result<TokenizerSpec> read_spec(const std::string& path) {
  const size_t equals = path.find('=');
  if (equals != std::string::npos) {
    const std::string name = path.substr(0, equals);
    TANDEM_TRY(spec, tandem::text::tokenizer_spec_of_tiktoken(read_file(path.substr(equals + 1)),
                                                              name, {}));
    if (name == "qwen2" || name == "qwen35") {
      spec.normalizer = JsonValue::object();
      spec.normalizer.set("type", JsonValue::string("NFC"));
    }
    return std::move(spec);
  }
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name.find(".model") != std::string::npos) {
    return tandem::text::tokenizer_spec_of_sentencepiece(read_file(path));
  }
  if (name.ends_with(".json")) {
    TANDEM_TRY(json, tandem::parse_json(read_file(path)));
    return name.starts_with("tekken") ? tandem::text::tokenizer_spec_of_tekken(json)
                                      : tandem::text::tokenizer_spec_of_tokenizer_json(json);
  }
  TANDEM_TRY(checkpoint, tandem::weights::Checkpoint::open(path));
  return tandem::engine::tokenizer_spec_of(checkpoint);
}

JsonValue array_of(const std::vector<int32_t>& ids) {
  JsonValue::Array items;
  items.reserve(ids.size());
  for (const int32_t id : ids) items.push_back(JsonValue::integer(id));
  return JsonValue::array(std::move(items));
}

int print_ids(const Tokenizer& tokenizer) {
  std::string out;
  for (std::string line; std::getline(std::cin, line);) {
    const auto json = tandem::parse_json(line);
    if (!json || !json->is_string()) {
      std::fprintf(stderr, "a line is not a JSON string\n");
      return 2;
    }
    const std::vector<int32_t> ids = tokenizer.encode(json->as_string());
    JsonValue row = JsonValue::object();
    row.set("ids", array_of(ids));
    row.set("special", array_of(tokenizer.encode(json->as_string(), {.parse_special = true})));
    row.set("text", JsonValue::string(tokenizer.decode(ids, true)));
    row.dump_to(out);
    out += '\n';
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  return 0;
}

int print_speed(const Tokenizer& tokenizer, const std::string& text) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  size_t tokens = 0;
  const auto start = Clock::now();
  for (int pass = 0; pass < 200 && (pass < 5 || Clock::now() - start < std::chrono::seconds(2));
       ++pass) {
    const auto before = Clock::now();
    tokens = tokenizer.encode(text).size();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - before).count());
  }
  std::printf("{\"bytes\": %zu, \"tokens\": %zu, \"megabytes_per_second\": %.2f}\n", text.size(),
              tokens, static_cast<double>(text.size()) / best / 1e6);
  return 0;
}

int render_all(const std::string& source, std::time_t now) {
  const auto made = tandem::text::ChatTemplate::parse(source);
  std::string out;
  for (std::string line; std::getline(std::cin, line);) {
    const auto context = tandem::parse_json(line);
    if (!context) {
      std::fprintf(stderr, "a line is not JSON\n");
      return 2;
    }
    const Result<std::string> text =
        made ? made->render(*context, {.now = now}) : tl::unexpected(made.error());
    JsonValue row = JsonValue::object();
    row.set(text ? "output" : "error", JsonValue::string(text ? *text : text.error().message));
    row.dump_to(out);
    out += '\n';
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  if (mode == "render" && argc == 4) {
    return render_all(read_file(argv[2]), std::strtoll(argv[3], nullptr, 10));
  }
  if ((mode != "ids" && mode != "speed" && mode != "spec") || (mode == "speed") != (argc == 4)) {
    std::fprintf(stderr, "usage: %s ids|spec FILE, speed FILE TEXT or render TEMPLATE EPOCH\n",
                 argv[0]);
    return 2;
  }
  auto spec = read_spec(argv[2]);
  if (!spec) {
    std::fprintf(stderr, "%s: %s\n", argv[2], spec.error().message.c_str());
    return 1;
  }
  if (mode == "spec") {
    const std::string json = tandem::text::tokenizer_spec_to_json(*spec).dump();
    std::printf("%s\n", json.c_str());
    return 0;
  }
  const auto tokenizer = Tokenizer::create(std::move(*spec));
  if (!tokenizer) {
    std::fprintf(stderr, "%s: %s\n", argv[2], tokenizer.error().message.c_str());
    return 1;
  }
  return mode == "ids" ? print_ids(**tokenizer) : print_speed(**tokenizer, read_file(argv[3]));
}
