// grammar: what grammars accept, what they generate, and what their masks cost.
//
// * bench_grammar check VOCABULARY < LINES: each line {"kind", "text", "strict"?, "spelling"?,
// "texts": [...]}; for each
//   {"accepts": [...], "notes": [...]} or {"error", "code", "pointer"}.
// * bench_grammar random VOCABULARY [TOKENS] < LINES: for each grammar the text that a model of
// random weights writes, as
//   {"text", "finished"}; also the ids.
// * bench_grammar masks VOCABULARY < LINES: each line also has "ids", the tokens of an answer; the
// microseconds of
//   compiling, of the first mask, and of each mask with the token behind it: {"compile", "first",
//   "masks": [...]}.
// * bench_grammar vocabulary VOCABULARY: its tokens in hexadecimal, for other libraries.
//
// VOCABULARY is a model file, or "bytes": 256 tokens and one that ends.
#include "grammar/grammar.h"

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "base/json_value.h"
#include "engine/grammar_masks.h"
#include "engine/tokenizer_source.h"
#include "sample/random.h"
#include "weights/checkpoint.h"

namespace {

using tandem::JsonValue;
using tandem::Result;
using namespace tandem::grammar;
using tandem::protocol::GrammarKind;
using tandem::protocol::GrammarSpec;
using Clock = std::chrono::steady_clock;

struct Loaded {
  std::shared_ptr<const Vocabulary> vocabulary;
  VocabularyTable table;
};

Result<Loaded> load(const std::string& name) {
  VocabularyTable table;
  if (name == "bytes") {
    for (int byte = 0; byte < 256; ++byte) table.bytes.emplace_back(1, static_cast<char>(byte));
    table.bytes.emplace_back();
    table.end_of_generation = {256};
  } else {
    TANDEM_TRY(checkpoint, tandem::weights::Checkpoint::open(name));
    TANDEM_TRY(spec, tandem::engine::tokenizer_spec_of(checkpoint));
    TANDEM_TRY(tokenizer, tandem::text::Tokenizer::create(std::move(spec)));
    table = tandem::engine::vocabulary_table(*tokenizer, tokenizer->vocab_size());
  }
  const auto start = Clock::now();
  Loaded out{std::make_shared<const Vocabulary>(table), std::move(table)};
  const auto taken = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  std::fprintf(stderr, "vocabulary of %zu tokens: %.1f ms\n", out.vocabulary->size(), taken);
  return out;
}

GrammarSpec spec_of(const JsonValue& line) {
  static constexpr std::pair<const char*, GrammarKind> kKinds[] = {
      {"json_schema", GrammarKind::kJsonSchema},
      {"json_object", GrammarKind::kJsonObject},
      {"regex", GrammarKind::kRegex},
      {"gbnf", GrammarKind::kGbnf},
      {"lark", GrammarKind::kLark},
      {"choice", GrammarKind::kChoice}};
  GrammarSpec out;
  for (const auto& [name, kind] : kKinds) {
    if (line.find("kind") != nullptr && line.find("kind")->as_string() == name) out.kind = kind;
  }
  if (const JsonValue* text = line.find("text")) out.text = text->as_string();
  if (const JsonValue* strict = line.find("strict")) out.strict = strict->as_bool();
  const JsonValue* spelling = line.find("spelling");
  if (spelling != nullptr && spelling->as_string() == "compact")
    out.spelling = tandem::protocol::JsonSpelling::kCompact;
  return out;
}

double microseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
}

void check(const JsonValue& line, const std::shared_ptr<const Grammar>& grammar, JsonValue& out) {
  JsonValue accepts = JsonValue::array();
  for (const JsonValue& text : line.find("texts")->items()) {
    const auto machine = grammar->machine();
    const auto end = machine->accept_text(machine->start(), text.as_string());
    accepts.push_back(JsonValue::boolean(end && *end != kDeadConfig && machine->accepting(*end)));
  }
  out.set("accepts", std::move(accepts));
  JsonValue notes = JsonValue::array();
  for (const std::string& note : grammar->notes()) notes.push_back(JsonValue::string(note));
  out.set("notes", std::move(notes));
}

// Any allowed token is as likely as any other, but one in eight steps ends where that is allowed.
void generate(const std::shared_ptr<const Grammar>& grammar, int limit, uint64_t seed,
              JsonValue& out) {
  const Vocabulary& vocabulary = grammar->vocabulary();
  Matcher matcher(grammar);
  TokenMask mask;
  std::string text;
  JsonValue ids = JsonValue::array();
  bool finished = matcher.finished();
  for (int i = 0; i < limit && !finished; ++i) {
    if (const auto made = matcher.mask(mask); !made) {
      out.set("error", JsonValue::string(made.error().message));
      break;
    }
    if (matcher.accepting() && tandem::sample::uniform(seed, 1, i) < 0.125) {
      finished = true;
      break;
    }
    auto left = static_cast<size_t>(tandem::sample::uniform(seed, 0, i) *
                                    static_cast<double>(mask.count()));
    int32_t token = -1;
    for (int32_t at = 0; at < static_cast<int32_t>(mask.tokens()); ++at) {
      if (mask.has(at) && left-- == 0) {
        token = at;
        break;
      }
    }
    if (!matcher.accept(token)) {
      out.set("error", JsonValue::string("a token of the mask was not accepted"));
      break;
    }
    finished = matcher.finished();
    text += vocabulary.bytes(token);
    if (!vocabulary.ends_generation(token)) ids.push_back(JsonValue::integer(token));
  }
  out.set("text", JsonValue::string(text));
  out.set("ids", std::move(ids));
  out.set("finished", JsonValue::boolean(finished));
}

void measure(const JsonValue& line, const std::shared_ptr<const Grammar>& grammar, double compile,
             JsonValue& out) {
  TokenMask mask(grammar->vocabulary().size());
  auto start = Clock::now();
  Matcher matcher(grammar);
  if (!matcher.mask(mask)) return;
  out.set("compile", JsonValue::real(compile));
  out.set("first", JsonValue::real(compile + microseconds(start)));
  JsonValue times = JsonValue::array();
  for (const JsonValue& id : line.find("ids")->items()) {
    start = Clock::now();
    if (!matcher.accept(static_cast<int32_t>(*id.as_integer())) || matcher.finished()) break;
    if (!matcher.mask(mask)) break;
    times.push_back(JsonValue::real(microseconds(start)));
  }
  out.set("masks", std::move(times));
}

int print_vocabulary(const Loaded& loaded) {
  constexpr char kDigits[] = "0123456789abcdef";
  JsonValue tokens = JsonValue::array();
  for (const std::string& text : loaded.table.bytes) {
    std::string hex;
    for (const char byte : text) {
      hex += kDigits[static_cast<uint8_t>(byte) >> 4];
      hex += kDigits[static_cast<uint8_t>(byte) & 15];
    }
    tokens.push_back(JsonValue::string(std::move(hex)));
  }
  JsonValue ends = JsonValue::array();
  for (const int32_t token : loaded.table.end_of_generation)
    ends.push_back(JsonValue::integer(token));
  JsonValue out = JsonValue::object();
  out.set("tokens", std::move(tokens));
  out.set("end_of_generation", std::move(ends));
  std::puts(out.dump().c_str());
  return 0;
}

int run(const std::string& mode, const Loaded& loaded, int limit) {
  std::string text;
  uint64_t seed = 0;
  while (std::getline(std::cin, text)) {
    const auto line = tandem::parse_json(text, 128);
    if (!line) {
      std::fprintf(stderr, "%s\n", line.error().message.c_str());
      return 1;
    }
    JsonValue out = JsonValue::object();
    const auto start = Clock::now();
    const auto grammar = compile(spec_of(*line), loaded.vocabulary);
    const double compile_time = microseconds(start);
    if (!grammar) {
      out.set("error", JsonValue::string(grammar.error().message));
      out.set("code", JsonValue::string(grammar.error().code));
      out.set("pointer", JsonValue::string(grammar.error().pointer.value_or("")));
    } else if (mode == "check") {
      check(*line, *grammar, out);
    } else if (mode == "random") {
      generate(*grammar, limit, ++seed, out);
    } else {
      measure(*line, *grammar, compile_time, out);
    }
    std::puts(out.dump().c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc < 3 ||
      (mode != "check" && mode != "random" && mode != "masks" && mode != "vocabulary")) {
    std::fprintf(
        stderr, "usage: bench_grammar check|random|masks|vocabulary VOCABULARY [TOKENS] < LINES\n");
    return 2;
  }
  const auto loaded = load(argv[2]);
  if (!loaded) {
    std::fprintf(stderr, "%s\n", loaded.error().message.c_str());
    return 1;
  }
  if (mode == "vocabulary") return print_vocabulary(*loaded);
  return run(mode, *loaded, argc > 3 ? std::stoi(argv[3]) : 400);
}
