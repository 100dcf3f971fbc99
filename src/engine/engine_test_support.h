// A tokenizer and a collector of events for tests of the engine and of what drives it.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "engine/engine.h"

namespace tandem::engine {

// Every byte is a token: text and ids are the same thing. The last id ends a turn.
inline std::shared_ptr<const text::Tokenizer> byte_tokenizer() {
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
  spec.eos = 256;
  spec.end_of_generation = {256};
  auto tokenizer = text::Tokenizer::create(spec);
  EXPECT_TRUE(tokenizer) << (tokenizer ? "" : tokenizer.error().message);
  return *tokenizer;
}

struct Collected {
  std::string text;
  std::optional<protocol::FinishEvent> finish;
  std::optional<Error> error;
};

// Collects events; the promise is kept by the last one.
inline EventSink collect_into(std::shared_ptr<Collected> collected,
                              std::shared_ptr<std::promise<Collected>> promise) {
  return [collected, promise](protocol::TokenEvent event) {
    if (auto* text = std::get_if<protocol::TextEvent>(&event)) collected->text += text->text;
    if (auto* finish = std::get_if<protocol::FinishEvent>(&event)) {
      collected->finish = *finish;
      promise->set_value(*collected);
    }
    if (auto* error = std::get_if<protocol::ErrorEvent>(&event)) {
      collected->error = error->error;
      promise->set_value(*collected);
    }
  };
}

}  // namespace tandem::engine
