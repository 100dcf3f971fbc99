#include "api/tools/families.h"

#include <algorithm>
#include <array>

namespace tandem::api {

namespace {

using Words = std::string_view;

// "｜" and "▁" of DeepSeek's tokens.
#define TANDEM_BAR "\xEF\xBD\x9C"
#define TANDEM_LOW "\xE2\x96\x81"

constexpr std::array kThink = {Words("<think>"), Words("</think>")};
constexpr std::array kMistralThink = {Words("[THINK]"), Words("[/THINK]"), Words("<think>"),
                                      Words("</think>")};
constexpr std::array kGemmaThink = {Words("<|channel>"), Words("<channel|>")};

constexpr std::array kHermes = {Words("<tool_call>"), Words("</tool_call>")};
constexpr std::array kSmolLmSigns = {Words("<tool_call>[")};
constexpr std::array kHermesSigns = {Words("<tool_call>")};
constexpr std::array kHermesNot = {Words("<arg_key>"), Words("<function=")};

constexpr std::array kQwenXml = {Words("<tool_call>"), Words("</tool_call>"), Words("<function=")};
constexpr std::array kQwenXmlSigns = {Words("<tool_call>"), Words("<function=")};

constexpr std::array kGlm = {Words("<tool_call>"), Words("</tool_call>"), Words("<arg_key>"),
                             Words("</arg_key>"),  Words("<arg_value>"),  Words("</arg_value>")};
constexpr std::array kGlmSigns = {Words("<arg_key>"), Words("<arg_value>")};

constexpr std::array kKimi = {Words("<|tool_calls_section_begin|>"),
                              Words("<|tool_calls_section_end|>"), Words("<|tool_call_begin|>"),
                              Words("<|tool_call_argument_begin|>"), Words("<|tool_call_end|>")};
constexpr std::array kKimiSigns = {Words("<|tool_calls_section_begin|>")};

constexpr std::array kKimi3 = {Words("<|open|>"), Words("<|close|>"), Words("<|sep|>")};
constexpr std::array kKimi3Signs = {Words("<|open|>"), Words("<|close|>"), Words("<|sep|>")};

constexpr std::array kDeepSeek = {
    Words("<" TANDEM_BAR "tool" TANDEM_LOW "calls" TANDEM_LOW "begin" TANDEM_BAR ">"),
    Words("<" TANDEM_BAR "tool" TANDEM_LOW "calls" TANDEM_LOW "end" TANDEM_BAR ">"),
    Words("<" TANDEM_BAR "tool" TANDEM_LOW "call" TANDEM_LOW "begin" TANDEM_BAR ">"),
    Words("<" TANDEM_BAR "tool" TANDEM_LOW "sep" TANDEM_BAR ">"),
    Words("<" TANDEM_BAR "tool" TANDEM_LOW "call" TANDEM_LOW "end" TANDEM_BAR ">")};
constexpr std::array kDeepSeekSigns = {kDeepSeek[0]};

constexpr std::array kDsml = {Words("<" TANDEM_BAR "DSML" TANDEM_BAR "function_calls>"),
                              Words("<" TANDEM_BAR "DSML" TANDEM_BAR "tool_calls>"),
                              Words("<" TANDEM_BAR "DSML" TANDEM_BAR " calls>"),
                              Words("</" TANDEM_BAR "DSML" TANDEM_BAR "parameter>"),
                              Words("</" TANDEM_BAR "DSML" TANDEM_BAR " parameter>"),
                              Words("<" TANDEM_BAR "DSML" TANDEM_BAR),
                              Words("</" TANDEM_BAR "DSML" TANDEM_BAR)};
constexpr std::array kDsmlSigns = {Words(TANDEM_BAR "DSML" TANDEM_BAR)};
constexpr std::array kDsmlKept = {Words(TANDEM_BAR "DSML" TANDEM_BAR)};

constexpr std::array kLlama3 = {Words("<|python_tag|>")};
constexpr std::array kLlama3Signs = {Words("<|start_header_id|>"), Words("ipython")};

constexpr std::array kLlama4 = {Words("<|python_start|>"), Words("<|python_end|>")};
constexpr std::array kLlama4Signs = {Words("<|header_start|>")};

constexpr std::array kMistral = {Words("[TOOL_CALLS]"), Words("[CALL_ID]"), Words("[ARGS]")};
constexpr std::array kMistralSigns = {Words("[TOOL_CALLS]")};

constexpr std::array kGemma = {Words("<|tool_call>"), Words("<tool_call|>"), Words("<|\"|>")};
constexpr std::array kGemmaSigns = {Words("<|tool_call>")};

constexpr std::array kHarmony = {Words("<|start|>"),   Words("<|end|>"),       Words("<|message|>"),
                                 Words("<|channel|>"), Words("<|constrain|>"), Words("<|call|>"),
                                 Words("<|return|>")};
constexpr std::array kHarmonySigns = {Words("<|channel|>"), Words("<|message|>")};

#undef TANDEM_BAR
#undef TANDEM_LOW

constexpr std::array kFamilies = {
    Family{.name = "harmony",
           .markers = kHarmony,
           .reply = make_harmony_reply,
           .layout = harmony_layout,
           .signs = kHarmonySigns,
           .reasoning_opens = "<|channel|>analysis<|message|>",
           .answer_opens = "<|channel|>final<|message|>"},
    Family{.name = "kimi_k3",
           .markers = kKimi3,
           .reply = make_xtml_reply,
           .layout = xtml_layout,
           .signs = kKimi3Signs,
           .reasoning_opens = "<|open|>think<|sep|>",
           .answer_opens = "<|open|>response<|sep|>"},
    Family{.name = "kimi_k2",
           .markers = kKimi,
           .calls = make_kimi_calls,
           .layout = kimi_layout,
           .reasoning = kThink,
           .calls_end_reasoning = true,
           .signs = kKimiSigns,
           .ids = CallIds::Style::kKimi},
    Family{.name = "deepseek_v32",
           .markers = kDsml,
           .calls = make_dsml_calls,
           .layout = dsml_layout,
           .reasoning = kThink,
           .kept = kDsmlKept,
           .signs = kDsmlSigns},
    Family{.name = "deepseek_v3",
           .markers = kDeepSeek,
           .calls = make_deepseek_calls,
           .layout = deepseek_layout,
           .reasoning = kThink,
           .signs = kDeepSeekSigns},
    Family{.name = "glm",
           .markers = kGlm,
           .calls = make_glm_calls,
           .layout = glm_layout,
           .reasoning = kThink,
           .calls_end_reasoning = true,
           .signs = kGlmSigns},
    Family{.name = "qwen3_xml",
           .markers = kQwenXml,
           .calls = make_qwen_xml_calls,
           .layout = qwen_xml_layout,
           .reasoning = kThink,
           .calls_end_reasoning = true,
           .signs = kQwenXmlSigns},
    Family{.name = "gemma4",
           .markers = kGemma,
           .calls = make_gemma_calls,
           .layout = gemma_layout,
           .reasoning = kGemmaThink,
           .reasoning_label = "thought\n",
           .signs = kGemmaSigns},
    Family{.name = "mistral",
           .markers = kMistral,
           .calls = make_mistral_calls,
           .layout = mistral_layout,
           .reasoning = kMistralThink,
           .signs = kMistralSigns},
    Family{.name = "llama4_pythonic",
           .markers = kLlama4,
           .calls = make_pythonic_calls,
           .layout = pythonic_layout,
           .signs = kLlama4Signs},
    Family{.name = "llama3_json",
           .markers = kLlama3,
           .calls = make_llama_calls,
           .layout = llama_layout,
           .signs = kLlama3Signs},
    Family{.name = "smollm2",
           .markers = kHermes,
           .calls = make_hermes_calls,
           .layout = smollm_layout,
           .reasoning = kThink,
           .signs = kSmolLmSigns},
    Family{.name = "hermes",
           .markers = kHermes,
           .calls = make_hermes_calls,
           .layout = hermes_layout,
           .reasoning = kThink,
           .signs = kHermesSigns,
           .counter_signs = kHermesNot},
};

struct OtherName {
  std::string_view name;
  std::string_view family;
};
// What other engines call them, so that a command line can stay as it is.
constexpr std::array kOtherNames = {
    OtherName{"openai", "harmony"},
    OtherName{"gpt-oss", "harmony"},
    OtherName{"gpt_oss", "harmony"},
    OtherName{"openai_gptoss", "harmony"},
    OtherName{"qwen", "hermes"},
    OtherName{"qwen25", "hermes"},
    OtherName{"qwen3", "hermes"},
    OtherName{"qwen3_coder", "qwen3_xml"},
    OtherName{"qwen3-coder", "qwen3_xml"},
    OtherName{"deepseek_v31", "deepseek_v3"},
    OtherName{"deepseekv3", "deepseek_v3"},
    OtherName{"deepseekv31", "deepseek_v3"},
    OtherName{"deepseek_r1", "deepseek_v3"},
    OtherName{"deepseek-r1", "deepseek_v3"},
    OtherName{"deepseekv32", "deepseek_v32"},
    OtherName{"deepseek_v4", "deepseek_v32"},
    OtherName{"glm45", "glm"},
    OtherName{"glm47", "glm"},
    OtherName{"glm4_moe", "glm"},
    OtherName{"llama3", "llama3_json"},
    OtherName{"llama4", "llama4_pythonic"},
    OtherName{"pythonic", "llama4_pythonic"},
    OtherName{"gemma", "gemma4"},
    OtherName{"kimi", "kimi_k2"},
    OtherName{"think", "hermes"},
};

bool holds(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family* find_family(std::string_view name) {
  const auto other = std::ranges::find(kOtherNames, name, &OtherName::name);
  if (other != kOtherNames.end()) name = other->family;
  const auto found = std::ranges::find(kFamilies, name, &Family::name);
  return found == kFamilies.end() ? nullptr : &*found;
}

const Family* recognize_calls(std::string_view chat_template) {
  for (const Family& family : kFamilies) {
    const auto in = [&](std::string_view word) { return holds(chat_template, word); };
    if (std::ranges::all_of(family.signs, in) && std::ranges::none_of(family.counter_signs, in))
      return &family;
  }
  // ChatML models that say nothing of tools: those that call any write them so.
  return holds(chat_template, "<|im_start|>") ? find_family("hermes") : nullptr;
}

const Family* recognize_reasoning(std::string_view chat_template) {
  if (const Family* family = recognize_calls(chat_template)) {
    const bool speaks = family->reply != nullptr ||
                        std::ranges::any_of(family->reasoning, [&](std::string_view word) {
                          return holds(chat_template, word);
                        });
    return speaks ? family : nullptr;
  }
  return holds(chat_template, "</think>") ? find_family("hermes") : nullptr;
}

}  // namespace tandem::api
