// A tokenizer and a collector of events for tests of the engine and of what drives it.
#pragma once

#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"

namespace tandem::engine {

// Every byte is a token: text and ids are the same thing. The last id but `merges` ends a turn;
// each merge
// ("n a") makes one more token.
inline std::shared_ptr<const text::Tokenizer> byte_tokenizer(
    const std::vector<std::string>& merges = {}) {
  text::TokenizerSpec spec;
  spec.kind = "bpe";
  spec.pre = "gpt-2";
  // The byte alphabet of byte-level BPE: printable bytes stand for themselves, the others for
  // U+0100 and on.
  int extra = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : 256 + extra++;
    std::string piece;
    if (code < 0x80) {
      piece += static_cast<char>(code);
    } else {
      piece += static_cast<char>(0xC0 | (code >> 6));
      piece += static_cast<char>(0x80 | (code & 63));
    }
    spec.tokens.push_back(piece);
    spec.types.push_back(1);
  }
  spec.tokens.emplace_back("<|end|>");
  spec.types.push_back(3);
  for (std::string merge : merges) {
    spec.merges.push_back(merge);
    merge.erase(merge.find(' '), 1);
    spec.tokens.push_back(std::move(merge));
    spec.types.push_back(1);
  }
  spec.eos = 256;
  spec.end_of_generation = {256};
  auto tokenizer = text::Tokenizer::create(spec);
  EXPECT_TRUE(tokenizer) << (tokenizer ? "" : tokenizer.error().message);
  return *tokenizer;
}

struct CollectedChoice {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<protocol::TokenLogprobs> logprobs;
  std::optional<protocol::FinishEvent> finish;
};
struct Collected {
  std::string text;                             // of choice 0
  std::optional<protocol::FinishEvent> finish;  // of choice 0
  std::optional<Error> error;
  std::optional<protocol::PromptEvent> prompt;
  std::map<int32_t, CollectedChoice> choices;
};

// Collects events; the promise is kept by the last one.
inline EventSink collect_into(const std::shared_ptr<Collected>& collected,
                              const std::shared_ptr<std::promise<Collected>>& promise,
                              size_t choices = 1) {
  return [collected, promise, choices](protocol::TokenEvent event) {
    ASSERT_FALSE(collected->error) << "nothing follows an error";
    if (auto* prompt = std::get_if<protocol::PromptEvent>(&event)) {
      EXPECT_TRUE(collected->choices.empty() && !collected->prompt) << "it comes first, once";
      collected->prompt = *prompt;
    }
    if (auto* text = std::get_if<protocol::TextEvent>(&event)) {
      auto& choice = collected->choices[text->choice];
      EXPECT_FALSE(choice.finish) << "text after the finish";
      choice.text += text->text;
      choice.tokens.insert(choice.tokens.end(), text->tokens.begin(), text->tokens.end());
      choice.logprobs.insert(choice.logprobs.end(), text->logprobs.begin(), text->logprobs.end());
    }
    bool over = false;
    if (auto* finish = std::get_if<protocol::FinishEvent>(&event)) {
      auto& choice = collected->choices[finish->choice];
      EXPECT_FALSE(choice.finish) << "one finish for each choice";
      choice.finish = *finish;
      over = collected->choices.size() == choices &&
             std::ranges::all_of(collected->choices,
                                 [](const auto& c) { return c.second.finish.has_value(); });
    }
    if (auto* error = std::get_if<protocol::ErrorEvent>(&event)) {
      collected->error = error->error;
      over = true;
    }
    if (!over) return;
    if (const auto first = collected->choices.find(0); first != collected->choices.end()) {
      collected->text = first->second.text;
      collected->finish = first->second.finish;
    }
    promise->set_value(*collected);
  };
}

// Everything of an answer but what its worker had cached, for comparing two.
inline std::string describe(const Collected& got) {
  std::ostringstream out;
  out << std::hexfloat;
  const auto chances = [&](const protocol::TokenLogprobs& logprobs) {
    out << " " << logprobs.chosen.token << ":" << logprobs.chosen.logprob;
    for (const auto& chance : logprobs.top) out << "," << chance.token << ":" << chance.logprob;
  };
  if (got.error) out << "error " << got.error->status << " " << got.error->code << "\n";
  if (got.prompt) {
    out << "prompt";
    for (const auto& logprobs : got.prompt->logprobs) {
      if (logprobs) chances(*logprobs);
    }
    out << "\n";
  }
  for (const auto& [index, choice] : got.choices) {
    out << index << ": " << ::testing::PrintToString(choice.text) << " "
        << ::testing::PrintToString(choice.tokens) << "\n";
    for (const auto& logprobs : choice.logprobs) chances(logprobs);
    if (!choice.finish) continue;
    const auto& finish = *choice.finish;
    out << "\nfinish " << static_cast<int>(finish.reason) << " " << finish.stop_string.value_or("-")
        << " " << finish.stop_token.value_or(-1) << " " << finish.usage.prompt_tokens << " "
        << finish.usage.completion_tokens << " "
        << ::testing::PrintToString(finish.completion_tokens) << "\n";
  }
  return out.str();
}

}  // namespace tandem::engine
