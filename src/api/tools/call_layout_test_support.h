// For the tests of calls: every family's variants, models of random weights that write under a
// grammar, and what the family's parser reads in it.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "api/api_test_support.h"
#include "api/custom_tools.h"
#include "api/reply_grammar.h"
#include "api/tools/call_layout.h"
#include "api/tools/families.h"
#include "api/tools/reply_parser.h"
#include "grammar/grammar.h"

namespace tandem::api {

inline constexpr const char* kSchemas[] = {
    R"({"type":"object","properties":{"s":{"type":"string","maxLength":9},"i":{"type":"integer","minimum":-5,"maximum":120},
        "b":{"type":"boolean"},"n":{"type":["string","null"],"maxLength":6},"e":{"enum":["a b","c",7,null,true]}},
        "required":["s","i","n","e"],"additionalProperties":false})",
    R"({"type":"object","properties":{"list":{"type":"array","items":{"$ref":"#/$defs/p"},"maxItems":2},
        "o":{"type":"object","properties":{"x y":{"type":"string","maxLength":5},"z":{"type":["number","string"],"maximum":9,"maxLength":4}},
        "required":["x y","z"],"additionalProperties":false}},"required":["list","o"],"additionalProperties":false,
        "$defs":{"p":{"anyOf":[{"type":"string","maxLength":5},{"type":"null"},{"type":"array","items":{"type":"boolean"},"maxItems":2}]}}})",
    R"({"type":"object","properties":{"p":{"type":"string","pattern":"^[a-z]{2,4}(-\\d)?$"},"c":{"const":"</x>"},
        "u":{"anyOf":[{"type":"integer","maximum":50},{"type":"string","maxLength":4},{"type":"object","properties":{},"additionalProperties":false}]}},
        "required":["u"],"additionalProperties":{"type":"integer"},"maxProperties":4})",
    R"({"type":"object","properties":{}, "additionalProperties":false})",
};

struct Variant {
  const char* parser;
  const char* chat_template;
  const char* prompt_end;
  bool tokens;  // markers are tokens
};
inline constexpr Variant kVariants[] = {
    {"hermes", "", "", false},
    {"hermes", "", "<think>\n", true},
    {"smollm2", "", "", false},
    {"qwen3_xml", "", "", false},
    {"qwen3_xml", "", "</think>\n\n", true},
    {"glm", "", "", false},
    {"glm", "</arg_key>\n<arg_value>", "<think>", true},
    {"kimi_k2", "", "", true},
    {"kimi_k3", "", "", true},
    {"kimi_k3", "", "<|open|>think<|sep|>", true},
    {"deepseek_v3", "", "", true},
    {"deepseek_v3", "```json", "", true},
    {"deepseek_v32", "", "</think>", false},
    {"deepseek_v32",
     "\xEF\xBD\x9C"
     "DSML\xEF\xBD\x9Ctool_calls",
     "", true},
    {"llama3_json", "", "", false},
    {"llama4_pythonic", "", "", true},
    {"mistral", "[TOOL_CALLS]", "", true},
    {"mistral", "[TOOL_CALLS][ARGS]", "", true},
    {"mistral", "[TOOL_CALLS][CALL_ID][ARGS]", "", true},
    {"gemma4", "", "", true},
    {"harmony", "", "", true},
    {"harmony", "", "<|channel|>analysis<|message|>", true},
};

inline constexpr int32_t kEos = 256;
inline constexpr int32_t kFirst = 257;

// The vocabulary of bytes and the family's markers.
struct Model {
  std::vector<std::pair<std::string, int32_t>> tokens;
  std::shared_ptr<const ReplyFormat> format;
  std::shared_ptr<const grammar::Vocabulary> vocabulary;
  std::string prompt_end;

  std::string spelling(int32_t token) const {
    return token < kEos ? std::string(1, static_cast<char>(token))
                        : tokens[static_cast<size_t>(token - kFirst)].first;
  }
};

inline Model model_of(const Variant& of) {
  Model out;
  const Family& family = *find_family(of.parser);
  const auto add = [&](std::string_view text) {
    const auto same = [&](const auto& one) { return one.first == text; };
    if (std::ranges::none_of(out.tokens, same))
      out.tokens.emplace_back(std::string(text), kFirst + static_cast<int32_t>(out.tokens.size()));
  };
  if (of.tokens && family.kept.empty()) {
    for (const std::string_view marker : family.markers) {
      if (marker != "<function=") add(marker);
    }
  }
  if (of.tokens) {
    for (const std::string_view part : family.kept) add(part);
    for (const std::string_view marker : family.reasoning) add(marker);
  }
  out.format = *ReplyFormat::create({of.parser, of.parser}, out.tokens, of.chat_template);
  grammar::VocabularyTable table;
  for (int byte = 0; byte < 256; ++byte) table.bytes.emplace_back(1, static_cast<char>(byte));
  table.bytes.resize(kFirst + out.tokens.size());
  table.end_of_generation = {kEos};
  for (const auto& [name, id] : out.tokens) {
    table.special.push_back({name, id});
    if (name == "<|call|>") table.end_of_generation.push_back(id);
  }
  out.vocabulary = std::make_shared<const grammar::Vocabulary>(std::move(table));
  out.prompt_end = of.prompt_end;
  return out;
}

// A random writer, in love with structure: so texts stay short.
class Writer {
 public:
  Writer(const Model& model, const std::shared_ptr<const grammar::Grammar>& grammar, uint32_t seed)
      : model_(model), matcher_(grammar), random_(seed) {}

  bool say(std::string_view letters) {
    for (const char c : letters) {
      if (!take(static_cast<unsigned char>(c))) return false;
    }
    return true;
  }
  bool take(int32_t token) {
    if (!matcher_.accept(token)) return false;
    if (token == kEos) return true;
    if (token >= kFirst) marks.push_back({static_cast<uint32_t>(text.size()), token});
    text += model_.spelling(token);
    return true;
  }
  // False: it does not end.
  bool finish() {
    grammar::TokenMask mask;
    for (int step = 0; step < 3000; ++step) {
      if (matcher_.finished()) return true;
      const auto made = matcher_.mask(mask);
      EXPECT_TRUE(made) << made.error().message << " after " << text;
      if (!made) return false;
      if (mask.has(kEos) && random_() % 2 == 0) return true;
      std::vector<int32_t> all;
      std::vector<int32_t> structure;
      for (int32_t token = 0; token < static_cast<int32_t>(mask.tokens()); ++token) {
        if (!mask.has(token)) continue;
        all.push_back(token);
        constexpr std::string_view kStructure = "<>\"'{}[](),:=/\n";
        if (token > kEos ||
            (token < kEos && kStructure.find(static_cast<char>(token)) != std::string::npos))
          structure.push_back(token);
      }
      if (ends_texts && all.size() > 128 && random_() % 4 == 0) {
        spell(kEnds[random_() % std::size(kEnds)]);
        continue;
      }
      const bool structural = !structure.empty() && random_() % 3 == 0;
      const auto& from = structural ? structure : all;
      const int32_t next = from[random_() % from.size()];
      if (!take(next)) ADD_FAILURE() << "the mask lied";
      if (next == kEos || (next >= kFirst && model_.spelling(next) == "<|call|>")) return true;
    }
    return false;
  }

  std::string text;
  std::vector<protocol::TokenMark> marks;
  bool ends_texts = false;  // tries now and then what ends texts that are raw

 private:
  static constexpr std::string_view kEnds[] = {"\n</parameter>", "</arg_value>",
                                               "</\xEF\xBD\x9C"
                                               "DSML\xEF\xBD\x9Cparameter>"};

  // As far as the grammar allows, in tokens where there are any.
  void spell(std::string_view letters) {
    while (!letters.empty()) {
      const auto token = std::ranges::find_if(
          model_.tokens, [&](const auto& one) { return letters.starts_with(one.first); });
      if (token != model_.tokens.end() && take(token->second)) {
        letters.remove_prefix(token->first.size());
      } else if (take(static_cast<unsigned char>(letters[0]))) {
        letters.remove_prefix(1);
      } else {
        return;
      }
    }
  }

  const Model& model_;
  grammar::Matcher matcher_;
  std::minstd_rand random_;
};

struct Said {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // names and arguments
};

inline Said read(const Model& model, const JsonValue& tools, const Writer& writer) {
  const ToolTable table(tools);
  ReplySetup setup;
  setup.tools = &table;
  setup.prompt_end = model.prompt_end;
  ReplyParser parser(*model.format, std::move(setup));
  ReplyEvents events = parser.push(writer.text, writer.marks);
  for (ReplyEvent& event : parser.finish(false)) events.push_back(std::move(event));
  Said out;
  for (const ReplyEvent& event : events) {
    if (const auto* said = std::get_if<TextDelta>(&event)) out.text += said->text;
    if (const auto* start = std::get_if<CallStart>(&event)) out.calls.emplace_back(start->name, "");
    if (const auto* some = std::get_if<CallArguments>(&event))
      out.calls.back().second += some->text;
    if (const auto* end = std::get_if<CallEnd>(&event)) EXPECT_TRUE(end->complete);
  }
  return out;
}

inline std::shared_ptr<const grammar::Grammar> compiled(const protocol::GrammarSpec& spec,
                                                        const Model& model) {
  auto made = grammar::compile(spec, model.vocabulary);
  EXPECT_TRUE(made) << made.error().message << " at " << made.error().pointer.value_or("") << "\n"
                    << spec.text;
  return made ? *made : nullptr;
}

inline bool valid(const Model& model, protocol::GrammarKind kind, const std::string& schema,
                  const std::string& text) {
  const auto made = compiled(
      {.kind = kind, .text = schema, .strict = true, .spelling = protocol::JsonSpelling::kCompact},
      model);
  if (made == nullptr) return false;
  grammar::Matcher matcher(made);
  for (const char c : text) {
    if (!matcher.accept(static_cast<unsigned char>(c))) return false;
  }
  return matcher.accepting();
}

inline std::string body_of(const char* schema, const std::string& more) {
  return R"(,"tools":[{"type":"function","function":{"name":"do.it-2","strict":true,"parameters":)" +
         std::string(schema) +
         R"(}},{"type":"function","function":{"name":"other","parameters":{"type":"object","properties":{"q":{"type":"string","maxLength":4}},"additionalProperties":false}}}])" +
         more;
}

inline Opening opening_of(const Model& model) { return model.format->opening(model.prompt_end); }

}  // namespace tandem::api
