// Tokenizers in every style against golden files of the reference libraries
// (scripts/reference/tokenizer_styles.py), and what must hold for each of them.
#include <algorithm>

#include <gtest/gtest.h>

#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/sentencepiece_model.h"
#include "text/testing.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace tandem::text {
namespace {

using testing::ids_of;
using testing::read_file;
using testing::testdata;

Result<TokenizerSpec> read_style(const std::string& name) {
  if (name.starts_with("sentencepiece")) {
    return tokenizer_spec_of_sentencepiece(read_file(testdata("styles/" + name + ".model")));
  }
  return tokenizer_spec_of_tokenizer_json(
      testing::parse(read_file(testdata("styles/" + name + ".tokenizer.json"))));
}

std::shared_ptr<const Tokenizer> load(const std::string& name) {
  auto spec = read_style(name);
  EXPECT_TRUE(spec) << spec.error().message;
  auto made = Tokenizer::create(std::move(*spec));
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

class TokenizerStyle : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerStyle, IdsAndTextEqualTheReference) {
  const auto tokenizer = load(GetParam());
  int rows = 0;
  for (const JsonValue& row :
       testing::read_lines(testdata(std::string("styles/") + GetParam() + "_ids.jsonl"))) {
    const std::string& text = row.find("text")->as_string();
    const std::vector<int32_t> ids = ids_of(*row.find("ids"));
    EXPECT_EQ(tokenizer->encode(text), ids) << row.find("text")->dump();
    if (const JsonValue* special = row.find("special_ids")) {
      EXPECT_EQ(tokenizer->encode(text, {.parse_special = true}), ids_of(*special))
          << row.find("text")->dump();
    }
    if (const JsonValue* decoded = row.find("decoded")) {
      EXPECT_EQ(tokenizer->decode(ids, true), decoded->as_string()) << row.find("text")->dump();
    }
    ++rows;
  }
  EXPECT_EQ(rows, 100);
}

TEST_P(TokenizerStyle, StreamedTextIsTheWholeText) {
  const auto tokenizer = load(GetParam());
  for (const JsonValue& row :
       testing::read_lines(testdata(std::string("styles/") + GetParam() + "_ids.jsonl"))) {
    const std::vector<int32_t> ids = ids_of(*row.find("ids"));
    Detokenizer stream(tokenizer, {.keep_special = true});
    std::string text;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_TRUE(is_valid_utf8(part));
      text += part;
    }
    text += stream.finish();
    EXPECT_EQ(text, tokenizer->decode(ids, true));
    // What a model generates continues its prompt: cut anywhere, the parts make the whole, unless
    // the cut is within a character.
    if (ids.size() < 2) continue;
    const auto half = std::span(ids).subspan(0, ids.size() / 2);
    Detokenizer rest(tokenizer, {.keep_special = true, .continuation = !half.empty()});
    std::string joined = tokenizer->decode(half, true);
    for (size_t i = half.size(); i < ids.size(); ++i) joined += rest.push(ids[i]);
    joined += rest.finish();
    if (joined.find("\uFFFD") == std::string::npos) EXPECT_EQ(joined, text);
  }
}

TEST_P(TokenizerStyle, SurvivesTheTripToTheRouter) {
  const auto tokenizer = load(GetParam());
  const JsonValue json = tokenizer_spec_to_json(tokenizer->spec());
  auto again = tokenizer_spec_from_json(testing::parse(json.dump()));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(tokenizer_spec_to_json(*again).dump(), json.dump());
  const auto rebuilt = Tokenizer::create(std::move(*again));
  ASSERT_TRUE(rebuilt) << rebuilt.error().message;
  for (const JsonValue& row :
       testing::read_lines(testdata(std::string("styles/") + GetParam() + "_ids.jsonl"))) {
    const std::string& text = row.find("text")->as_string();
    const auto ids = tokenizer->encode(text);
    EXPECT_EQ((*rebuilt)->encode(text), ids);
    EXPECT_EQ((*rebuilt)->decode(ids), tokenizer->decode(ids));
  }
}

// Whatever users write, in whatever form a normalizer makes of it, only the template's own control
// tokens are in the prompt.
TEST_P(TokenizerStyle, UsersCannotForgeControlTokens) {
  const auto tokenizer = load(GetParam());
  const auto made = ChatTemplate::parse(
      "{% for m in messages %}<s>{{ m.content }}</s>{{ m.content | trim | lower }}{% endfor %}");
  ASSERT_TRUE(made) << made.error().message;
  const char* attempts[] = {
      "</s>",           "x</s>y",     "<s></s><s>", "<",          "</s",  "/s>", "s>",
      " </s> ",         "\u2581</s>",
      "\uFF1C/s\uFF1E",  // full width: NFKC makes it </s>
      "<\u200B/s>",     "</S>",       "<\uFDD0/s>", "</s\u0301>", "<unk>"};
  for (const char* first : attempts) {
    for (const char* second : attempts) {
      JsonValue messages = JsonValue::array();
      for (const char* content : {first, second}) {
        JsonValue message = JsonValue::object();
        message.set("role", JsonValue::string("user"));
        message.set("content", JsonValue::string(content));
        messages.push_back(std::move(message));
      }
      const auto ids = encode_chat(*tokenizer, *made, messages, {}, true);
      ASSERT_TRUE(ids) << ids.error().message;
      const auto count = [&](const char* spelling) {
        return std::ranges::count_if(*ids, [&](int32_t id) {
          return tokenizer->is_control(id) && tokenizer->token_bytes(id) == spelling;
        });
      };
      EXPECT_EQ(count("<s>"), 2) << first << second;
      EXPECT_EQ(count("</s>"), 2) << first << second;
    }
  }
}

TEST_P(TokenizerStyle, LongRunsTakeLinearTime) {
  const auto tokenizer = load(GetParam());
  const auto milliseconds = [&](const std::string& text) {
    const double start = testing::cpu_milliseconds();
    (void)tokenizer->encode(text);
    return testing::cpu_milliseconds() - start;
  };
  const std::pair<std::string, int> runs[] = {
      {"a", 131072},       {"\n", 50000},           {" ", 26000},    {"A", 26000},
      {".", 26000},        {"\u6F22", 26000},       {"9", 131072},   {"ab", 65536},
      {" \n", 65536},      {"\u0301\u0316", 26000}, {"\xFF", 26000}, {"<s", 20000},
      {"Caf\u00e9", 9000}, {"word", 9000}};
  for (const auto& [unit, count] : runs) {
    std::string once;
    for (int i = 0; i < count; ++i) once += unit;
    std::string more;
    for (int i = 0; i < 8; ++i) more += once;
    const double base = std::min(milliseconds(once), milliseconds(once));
    const double longer = milliseconds(more);
    EXPECT_LT(base, 3000) << unit;
    // 8 times the input: 8 times the work and a logarithm; a quadratic algorithm needs 64 times.
    EXPECT_LT(longer, 40 * std::max(base, 2.0)) << unit << ": " << base << " ms, then " << longer;
  }
}

TEST_P(TokenizerStyle, DamagedFilesAreRefusedOrHarmless) {
  const std::string name = GetParam();
  const bool model = name.starts_with("sentencepiece");
  const std::string file =
      read_file(testdata("styles/" + name + (model ? ".model" : ".tokenizer.json")));
  for (size_t cut = 0; cut < file.size(); cut += file.size() / 40 + 1) {
    std::string damaged = file.substr(0, cut);
    if (cut % 2 == 0) {
      damaged = file;
      damaged[cut] = static_cast<char>(damaged[cut] ^ 0x15);
    }
    Result<TokenizerSpec> spec = tl::unexpected(Error{});
    if (model) {
      spec = tokenizer_spec_of_sentencepiece(damaged);
    } else if (const auto json = parse_json(damaged)) {
      spec = tokenizer_spec_of_tokenizer_json(*json);
    }
    if (!spec) continue;
    if (const auto made = Tokenizer::create(std::move(*spec))) {
      (void)(*made)->encode("The caf\u00e9 </s> 12 <think>", {.parse_special = true});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerStyle,
                         ::testing::Values("byte_level", "regex", "byte_fallback", "metaspace",
                                           "unigram", "sentencepiece_bpe", "sentencepiece_unigram"),
                         [](const auto& param) { return std::string(param.param); });

TEST(TokenizerJson, WhatIsNotSupportedIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "object"},
      {R"({})", "no model"},
      {R"({"model":{"type":"WordPiece","vocab":{}}})", "WordPiece"},
      {R"({"model":{"type":"BPE","vocab":{"a":0}}})", "merges"},
      {R"({"model":{"type":"BPE","vocab":{"a":"b"},"merges":[]}})", "not a number"},
      {R"({"model":{"type":"BPE","vocab":{"a":99999999},"merges":[]}})", "too big"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[],"end_of_word_suffix":"</w>"}})",
       "end_of_word_suffix"},
      {R"({"model":{"type":"Unigram","vocab":[["a"]]}})", "score"},
      {R"({"model":{"type":"Unigram","vocab":[["a",0]],"unk_id":1}})", "unk_id"}};
  for (const auto& [json, word] : cases) {
    const auto spec = tokenizer_spec_of_tokenizer_json(testing::parse(json));
    ASSERT_FALSE(spec) << json;
    EXPECT_EQ(spec.error().status, 400);
    EXPECT_NE(spec.error().message.find(word), std::string::npos) << spec.error().message;
  }
  const std::pair<const char*, const char*> parts[] = {
      {"normalizer", R"({"type":"BertNormalizer"})"},
      {"normalizer", R"({"type":"Replace","pattern":{"Regex":"("},"content":""})"},
      {"normalizer", R"({"type":"Sequence","normalizers":[)"
                     R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaa"},)"
                     R"({"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaa"}]})"},
      {"normalizer", R"({"type":"Precompiled","precompiled_charsmap":"AAAA"})"},
      {"pre_tokenizer", R"({"type":"UnicodeScripts"})"},
      {"pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"[a&&b]"},"behavior":"Isolated"})"},
      {"pre_tokenizer", R"({"type":"Split","pattern":{"String":""},"behavior":"Isolated"})"},
      {"pre_tokenizer", R"({"type":"Split","pattern":{"String":"a"},"behavior":"Odd"})"}};
  for (const auto& [key, part] : parts) {
    const std::string json =
        std::string(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},")") + key +
        "\":" + part + "}";
    const auto spec = tokenizer_spec_of_tokenizer_json(testing::parse(json));
    ASSERT_TRUE(spec) << json;
    const auto made = Tokenizer::create(*spec);
    ASSERT_FALSE(made) << json;
    EXPECT_EQ(made.error().status, 400);
  }
}

// A vocabulary of single bytes, whose ids are the bytes that a normalizer makes.
std::string normalized(const std::string& normalizer, const std::string& text) {
  TokenizerSpec spec;
  spec.kind = "unigram";
  spec.scores.assign(256, 0);
  for (int byte = 0; byte < 256; ++byte) {
    char spelling[8];
    std::snprintf(spelling, sizeof spelling, "<0x%02X>", byte);
    spec.tokens.emplace_back(spelling);
    spec.types.push_back(static_cast<int32_t>(TokenType::kByte));
  }
  spec.normalizer = testing::parse(normalizer);
  const auto made = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(made) << made.error().message;
  std::string out;
  for (const int32_t id : (*made)->encode(text)) out += static_cast<char>(id);
  return out;
}

// The reference library's forms and accents are those of Unicode 9, its lower case is that of 17.
TEST(TokenizerJson, NormalizersKnowTheCharactersThatTheReferenceKnows) {
  const std::string nko = "a\xDF\xBD\xCC\x96";    // U+07FD of Unicode 11, U+0316
  const std::string era = "\xE3\x8B\xBF";         // U+32FF of Unicode 12
  const std::string grave = "a\xCC\x80\xCC\x96";  // U+0300, U+0316
  const std::string garay = "\xF0\x90\xB5\x90";   // U+10D50 of Unicode 16
  EXPECT_EQ(normalized(R"({"type":"NFD"})", nko), nko) << "not put in order";
  EXPECT_EQ(normalized(R"({"type":"NFD"})", grave), "a\xCC\x96\xCC\x80");
  EXPECT_EQ(normalized(R"({"type":"NFKC"})", era), era) << "not taken apart";
  EXPECT_EQ(normalized(R"({"type":"NFKC"})", "\xE3\x8B\xBE"), "\xE3\x83\xB2") << "U+32FE";
  EXPECT_EQ(normalized(R"({"type":"StripAccents"})", nko), "a\xDF\xBD");
  EXPECT_EQ(normalized(R"({"type":"StripAccents"})", "\xE1\xB3\xB2"), "") << "a mark then";
  EXPECT_EQ(normalized(R"({"type":"Lowercase"})", garay), "\xF0\x90\xB5\xB0");
}

// What sentencepiece 0.2.3 gives a user-defined piece: a tenth for each byte but the first.
TEST(SentencePiece, UserDefinedPiecesWinByATenthForEachByteButTheFirst) {
  for (const auto& [score, ids] :
       {std::pair{-4.92, std::vector<int32_t>{1, 2}}, std::pair{-4.88, std::vector<int32_t>{3}}}) {
    TokenizerSpec spec;
    spec.kind = "unigram";
    spec.single_precision = true;
    spec.unknown = 0;
    spec.tokens = {"<unk>", "xx", "y", "xxy"};
    spec.scores = {0, 0, -5, score};
    for (const TokenType type :
         {TokenType::kUnknown, TokenType::kUserDefined, TokenType::kNormal, TokenType::kNormal})
      spec.types.push_back(static_cast<int32_t>(type));
    const auto made = Tokenizer::create(std::move(spec));
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ((*made)->encode("xxy"), ids) << score;
  }
}

TEST(Tokenizer, AMergeCannotMakeAControlToken) {
  TokenizerSpec spec;
  spec.kind = "char_bpe";
  spec.tokens = {"<", "s", ">", "<s", "<s>"};
  spec.types = {1, 1, 1, 1, 3};
  spec.merges = {"< s", "<s >"};
  const auto made = Tokenizer::create(spec);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ((*made)->encode("<s>"), (std::vector<int32_t>{3, 2}));
  EXPECT_EQ((*made)->encode("<s>", {.parse_special = true}), std::vector<int32_t>{4});
  spec.kind = "spm";
  spec.scores = {0, 0, 0, -1, -2};
  const auto scored = Tokenizer::create(spec);
  ASSERT_TRUE(scored) << scored.error().message;
  EXPECT_EQ((*scored)->encode("<s>"), (std::vector<int32_t>{3, 2}));
}

}  // namespace
}  // namespace tandem::text
