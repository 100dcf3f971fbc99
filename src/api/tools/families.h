// The table of families: their markers, their reasoning, what makes their parsers, and how a model
// is known to be of one.
#pragma once

#include <span>
#include <string_view>

#include "api/tools/call_layout.h"
#include "api/tools/syntax.h"

namespace tandem::api {

struct Family {
  std::string_view name;
  // Of the syntax, in the order that its maker expects.
  std::span<const std::string_view> markers;
  std::unique_ptr<CallSyntax> (*calls)(const Markers&) = nullptr;
  std::unique_ptr<ReplyMachine> (*reply)(const Markers&, Opening) = nullptr;  // instead of calls
  Result<CallLayout> (*layout)(const LayoutInput&) = nullptr;  // how its calls are written
  // Pairs of opening and closing markers.
  std::span<const std::string_view> reasoning = {};
  std::string_view reasoning_label = {};
  bool calls_end_reasoning = false;
  // Spellings that are tokens inside the format but no markers.
  std::span<const std::string_view> kept = {};
  // A template that holds all of the first words is of this family, unless it holds one of the
  // others. In the table's order.
  std::span<const std::string_view> signs = {};
  std::span<const std::string_view> counter_signs = {};
  CallIds::Style ids = CallIds::Style::kRandom;
  // For replies that are machines of their own: how the prompt's end opens reasoning or an answer.
  std::string_view reasoning_opens = {};
  std::string_view answer_opens = {};
};

std::span<const Family> families();
const Family* find_family(std::string_view name);  // also by the names other engines use; or null
// By template and vocabulary; null: none is recognized.
const Family* recognize_calls(std::string_view chat_template);
// The first whose reasoning markers the template speaks of.
const Family* recognize_reasoning(std::string_view chat_template);

}  // namespace tandem::api
