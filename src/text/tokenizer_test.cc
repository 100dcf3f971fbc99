#include "text/tokenizer.h"

#include <cstdlib>
#include <iterator>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "text/detokenizer.h"
#include "text/pretokenizer.h"
#include "text/testing.h"

namespace tandem::text {
namespace {

using testing::ids_of;
using testing::load_tokenizer;
using testing::testdata;

// Compares with the golden rows; returns how many there were.
int expect_golden(const Tokenizer& tokenizer, const std::string& path) {
  int rows = 0;
  for (const JsonValue& row : testing::read_lines(path)) {
    const JsonValue* string = row.find("text");
    if (!string) continue;
    const std::string& text = string->as_string();
    const std::vector<int32_t> plain = ids_of(*row.find("ids"));
    EXPECT_EQ(tokenizer.encode(text), plain) << string->dump();
    const JsonValue* special = row.find("special_ids");
    EXPECT_EQ(tokenizer.encode(text, {.parse_special = true}), special ? ids_of(*special) : plain)
        << string->dump();
    ++rows;
    if (::testing::Test::HasFailure() && rows > 20) break;
  }
  return rows;
}

TEST(Tokenizer, IdsEqualTheReferenceOnRandomUnicode) {
  for (const char* pre : {"smollm", "gpt2"}) {
    const std::string name = testdata(std::string("small_bpe_") + pre);
    EXPECT_EQ(expect_golden(*load_tokenizer(name + ".json"), name + "_ids.jsonl"), 150);
  }
}

// The 10,000 strings of scripts/reference/tokenizer.py with a real model's vocabulary.
TEST(Tokenizer, IdsEqualTheReferenceWithARealVocabulary) {
  const char* directory = std::getenv("TANDEM_TEXT_REFERENCE");
  if (!directory) GTEST_SKIP() << "TANDEM_TEXT_REFERENCE is not set (make reference)";
  const auto tokenizer = load_tokenizer(std::string(directory) + "/spec.json");
  EXPECT_GE(expect_golden(*tokenizer, std::string(directory) + "/ids.jsonl"), 10000);
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  const auto tokenizer = load_tokenizer(testdata("small_bpe_smollm.json"));
  for (const JsonValue& row : testing::read_lines(testdata("small_bpe_smollm_ids.jsonl"))) {
    const JsonValue* string = row.find("text");
    if (!string) continue;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(string->as_string())), string->as_string());
  }
}

TEST(Tokenizer, BytesThatAreNotUtf8SurviveAsBytes) {
  const auto tokenizer = load_tokenizer(testdata("small_bpe_smollm.json"));
  const std::string bytes = "a\xFF\xC3 \xED\xA0\x80 b\xF0\x9F";
  std::string back;
  for (const int32_t token : tokenizer->encode(bytes)) back += tokenizer->token_bytes(token);
  EXPECT_EQ(back, bytes);
}

double milliseconds(const Tokenizer& tokenizer, const std::string& text) {
  const double start = testing::cpu_milliseconds();
  const auto tokens = tokenizer.encode(text);
  EXPECT_FALSE(tokens.empty());
  return testing::cpu_milliseconds() - start;
}

// llama.cpp#26965, #27783, #14655: one unbroken run of one class. Quadratic code takes minutes
// here.
TEST(Tokenizer, LongRunsTakeLinearTime) {
  const auto tokenizer = load_tokenizer(testdata("small_bpe_smollm.json"));
  const std::pair<std::string, int> runs[] = {
      {"Z", 131072}, {"a", 131072}, {"\n", 50000}, {" ", 26000},   {"A", 26000},      {".", 26000},
      {"漢", 26000}, {"9", 131072}, {"ab", 65536}, {" \n", 65536}, {"<|turn|", 20000}};
  for (const auto& [unit, count] : runs) {
    std::string once;
    for (int i = 0; i < count; ++i) once += unit;
    std::string more;
    for (int i = 0; i < 8; ++i) more += once;
    const double base = std::min(milliseconds(*tokenizer, once), milliseconds(*tokenizer, once));
    const double longer = milliseconds(*tokenizer, more);
    EXPECT_LT(base, 1000) << unit;
    // 8 times the input: 8 times the work and a logarithm; a quadratic algorithm needs 64 times.
    EXPECT_LT(longer, 40 * std::max(base, 2.0)) << unit << ": " << base << " ms, then " << longer;
  }
}

TEST(Tokenizer, SpecialTokensAreMatchedOnlyWhenAsked) {
  const auto tokenizer = load_tokenizer(testdata("small_bpe_smollm.json"));
  const std::string text = "a<|turn|>b";
  const auto contains = [](const std::vector<int32_t>& tokens, int32_t id) {
    return std::find(tokens.begin(), tokens.end(), id) != tokens.end();
  };
  EXPECT_FALSE(contains(tokenizer->encode(text), 1));
  EXPECT_TRUE(contains(tokenizer->encode(text, {.parse_special = true}), 1));
}

TEST(Tokenizer, TheLongestOfOverlappingSpecialTokensWins) {
  const auto tokenizer = load_tokenizer(testdata("small_bpe_smollm.json"));
  EXPECT_EQ(tokenizer->encode("<|turn|>>", {.parse_special = true}), std::vector<int32_t>{2});
}

TEST(Tokenizer, ASentinelIsDroppedAfterSpecialTokensAreFound) {
  const auto tokenizer = load_tokenizer(testdata("small_bpe_smollm.json"));
  const EncodeOptions options{.parse_special = true, .sentinel = "\uFDD0"};
  EXPECT_EQ(tokenizer->encode("hello <\uFDD0|turn|> world", options),
            tokenizer->encode("hello <|turn|> world"));
}

TEST(Tokenizer, ManyThreadsEncodeAlike) {
  const auto tokenizer = load_tokenizer(testdata("small_bpe_smollm.json"));
  const std::string text =
      "The quick brown fox's 12345 jumps\n\n over naïve überraschungen " + std::string(200, 'x');
  const auto expected = tokenizer->encode(text);
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) wrong[t] += tokenizer->encode(text) != expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, BrokenSpecsAreRefused) {
  const auto refuse = [](void (*edit)(TokenizerSpec&)) {
    TokenizerSpec spec = load_tokenizer(testdata("small_bpe_smollm.json"))->spec();
    edit(spec);
    const auto made = Tokenizer::create(std::move(spec));
    return !made && made.error().status == 400 && !made.error().message.empty();
  };
  EXPECT_TRUE(refuse([](TokenizerSpec& s) { s.kind = "wordpiece"; }));
  EXPECT_TRUE(refuse([](TokenizerSpec& s) { s.pre = "no-such"; }));
  EXPECT_TRUE(refuse([](TokenizerSpec& s) { s.tokens.clear(); }));
  EXPECT_TRUE(refuse([](TokenizerSpec& s) { s.types.pop_back(); }));
  EXPECT_TRUE(refuse([](TokenizerSpec& s) { s.merges.emplace_back("nospace"); }));
  EXPECT_TRUE(refuse([](TokenizerSpec& s) { s.merges.emplace_back("not there"); }));
  EXPECT_TRUE(refuse([](TokenizerSpec& s) { s.eos = 1'000'000; }));
  EXPECT_TRUE(refuse([](TokenizerSpec& s) { s.end_of_generation = {-7}; }));
}

// Two specs that differ anywhere are two identities: an identity stands for the whole spec.
TEST(TokenizerSpec, EveryFieldIsPartOfItsIdentity) {
  const TokenizerSpec spec = load_tokenizer(testdata("small_bpe_smollm.json"))->spec();
  using Edit = void (*)(TokenizerSpec&);
  constexpr Edit kEdits[] = {
      [](TokenizerSpec& s) { s.kind += "x"; },
      [](TokenizerSpec& s) { s.pre += "x"; },
      [](TokenizerSpec& s) { s.tokens.back() += "x"; },
      [](TokenizerSpec& s) { s.types.back() = s.types.back() == 1 ? 2 : 1; },
      [](TokenizerSpec& s) { s.merges.pop_back(); },
      [](TokenizerSpec& s) { s.scores.push_back(-1); },
      [](TokenizerSpec& s) { s.added.push_back({.id = 0}); },
      [](TokenizerSpec& s) { s.bos += 1; },
      [](TokenizerSpec& s) { s.eos += 1; },
      [](TokenizerSpec& s) { s.unknown += 1; },
      [](TokenizerSpec& s) { s.pad += 1; },
      [](TokenizerSpec& s) { s.end_of_generation.push_back(0); },
      [](TokenizerSpec& s) { s.add_bos = !s.add_bos; },
      [](TokenizerSpec& s) { s.add_eos = !s.add_eos; },
      [](TokenizerSpec& s) { s.whole_words = !s.whole_words; },
      [](TokenizerSpec& s) { s.fuse_unknown = !s.fuse_unknown; },
      [](TokenizerSpec& s) { s.single_precision = !s.single_precision; },
      [](TokenizerSpec& s) { s.metaspace = !s.metaspace; },
      [](TokenizerSpec& s) { s.strip_leading_space = !s.strip_leading_space; },
      [](TokenizerSpec& s) { s.normalizer = JsonValue::string("x"); },
      [](TokenizerSpec& s) { s.pre_tokenizer = JsonValue::string("x"); },
      [](TokenizerSpec& s) { s.chat_template += "x"; },
      [](TokenizerSpec& s) { s.tool_template += "x"; },
  };
  ASSERT_EQ(std::size(kEdits), tokenizer_spec_to_json(spec).members().size());
  std::set<std::string> identities = {tokenizer_identity(spec)};
  for (const Edit& edit : kEdits) {
    TokenizerSpec edited = spec;
    edit(edited);
    EXPECT_TRUE(identities.insert(tokenizer_identity(edited)).second) << (&edit - kEdits);
  }
  // What one token ends with could be what the next one begins with.
  TokenizerSpec moved = spec;
  std::swap(moved.tokens[0], moved.tokens[1]);
  EXPECT_TRUE(identities.insert(tokenizer_identity(moved)).second);
  EXPECT_EQ(tokenizer_identity(*tokenizer_spec_from_json(tokenizer_spec_to_json(spec))),
            tokenizer_identity(spec));
}

TEST(TokenizerSpec, SurvivesJson) {
  const TokenizerSpec spec = load_tokenizer(testdata("small_bpe_smollm.json"))->spec();
  const JsonValue json = tokenizer_spec_to_json(spec);
  const auto again = tokenizer_spec_from_json(testing::parse(json.dump()));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->tokens, spec.tokens);
  EXPECT_EQ(again->types, spec.types);
  EXPECT_EQ(again->merges, spec.merges);
  EXPECT_EQ(again->bos, spec.bos);
  EXPECT_EQ(again->end_of_generation, spec.end_of_generation);
  EXPECT_EQ(tokenizer_spec_to_json(*again).dump(), json.dump());
}

TEST(TokenizerSpec, BadJsonIsRefusedWithThePointer) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"tokens":7})", "/tokens"},
      {R"({"tokens":["a",7]})", "/tokens"},
      {R"({"tokens":["a"],"types":[9]})", "/types"},
      {R"({"tokens":["a"],"types":[1,1]})", "/types"},
      {R"({"tokens":["a"],"eos":1})", "/eos"},
      {R"({"tokens":["a"],"eos":-2})", "/eos"},
      {R"({"tokens":["a"],"end_of_generation":[1]})", "/end_of_generation"},
      {R"({"tokens":["a"],"scores":[1,2]})", "/scores"},
      {R"({"tokens":["a"],"add_bos":1})", "/add_bos"},
      {R"({"tokens":["a"],"chat_template":[]})", "/chat_template"},
      {R"([])", ""}};
  for (const auto& [json, pointer] : cases) {
    const auto spec = tokenizer_spec_from_json(testing::parse(json));
    ASSERT_FALSE(spec) << json;
    EXPECT_EQ(spec.error().status, 400);
    EXPECT_EQ(spec.error().pointer, pointer) << json;
  }
}

std::vector<std::string> pieces(const ScanRules& kind, std::string_view text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = next_piece(kind, text, at);
    out.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

TEST(Scanner, CutsLikeThePattern) {
  using Pieces = std::vector<std::string>;
  const ScanRules gpt2 = *find_scan_rules("gpt-2");
  const ScanRules smollm = *find_scan_rules("smollm");
  EXPECT_EQ(pieces(gpt2, "I'm  don't\n\n x"), (Pieces{"I", "'m", " ", " don", "'t", "\n\n", " x"}));
  EXPECT_EQ(pieces(gpt2, "a 123 b"), (Pieces{"a", " 123", " b"}));
  EXPECT_EQ(pieces(smollm, "a 12  3 b "), (Pieces{"a", " ", "1", "2", "  ", "3", " b", " "}));
  EXPECT_EQ(pieces(gpt2, " '  ''s"), (Pieces{" '", " ", " ''", "s"}));
  EXPECT_EQ(pieces(gpt2, "x\n"), (Pieces{"x", "\n"}));
  EXPECT_EQ(pieces(gpt2, "\n\nx"), (Pieces{"\n", "\n", "x"}));
}

TEST(Detokenizer, NeverSplitsACharacterAndEqualsTheWhole) {
  const auto tokenizer = load_tokenizer(testdata("small_bpe_smollm.json"));
  for (const JsonValue& row : testing::read_lines(testdata("small_bpe_smollm_ids.jsonl"))) {
    if (!row.find("ids")) continue;
    const std::vector<int32_t> ids = ids_of(*row.find("ids"));
    for (size_t skip = 0; skip < std::min<size_t>(ids.size(), 3); ++skip) {
      Detokenizer stream(tokenizer);
      std::string text;
      for (size_t i = skip; i < ids.size(); ++i) {
        const std::string part = stream.push(ids[i]);
        EXPECT_TRUE(is_valid_utf8(part));
        text += part;
      }
      text += stream.finish();
      EXPECT_EQ(text, tokenizer->decode(std::span(ids).subspan(skip)));
    }
  }
}

TEST(Detokenizer, InvalidBytesBecomeOneReplacementPerMaximalPart) {
  // Expected values by Python's bytes.decode("utf-8", "replace").
  const std::pair<std::string, std::string> cases[] = {
      {"\xF0\x9F\x98\x80", "😀"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"a\xE4\xBD", "a\uFFFD"},
      {"\xFF\xFE", "\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF0\x9F\x41", "\uFFFD\x41"},
      {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\x80z", "\uFFFDz"},
  };
  for (const auto& [bytes, expected] : cases) {
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      Utf8Stream stream;
      std::string out;
      stream.push(std::string_view(bytes).substr(0, cut), out);
      stream.push(std::string_view(bytes).substr(cut), out);
      stream.finish(out);
      EXPECT_EQ(out, expected);
      EXPECT_EQ(sanitize_utf8(bytes), expected);
    }
  }
}

TEST(Detokenizer, ControlTokensGiveNoText) {
  const auto tokenizer = load_tokenizer(testdata("small_bpe_smollm.json"));
  Detokenizer quiet(tokenizer);
  Detokenizer loud(tokenizer, {.keep_special = true});
  EXPECT_EQ(quiet.push(1), "");
  EXPECT_EQ(loud.push(1), "<|turn|>");
  EXPECT_TRUE(tokenizer->is_end_of_generation(0));
  EXPECT_FALSE(tokenizer->is_end_of_generation(1));
  EXPECT_FALSE(tokenizer->is_end_of_generation(-1));
  EXPECT_EQ(tokenizer->token_bytes(1'000'000), "");
}

}  // namespace
}  // namespace tandem::text
