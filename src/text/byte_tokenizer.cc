#include "text/byte_tokenizer.h"

namespace tandem::text {

TokenizerSpec byte_tokenizer_spec() {
  TokenizerSpec spec;
  spec.kind = "bpe";
  spec.pre = "gpt-2";
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int point = plain ? byte : next++;
    std::string text;
    if (point < 0x80) {
      text += static_cast<char>(point);
    } else {
      text += static_cast<char>(0xC0 | (point >> 6));
      text += static_cast<char>(0x80 | (point & 0x3F));
    }
    spec.tokens.push_back(text);
    spec.types.push_back(static_cast<int32_t>(TokenType::kNormal));
  }
  for (const char* special : {"<|start|>", "<|end|>"}) {
    spec.tokens.emplace_back(special);
    spec.types.push_back(static_cast<int32_t>(TokenType::kControl));
  }
  spec.eos = 257;
  spec.end_of_generation = {257};
  spec.chat_template =
      "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] "
      "}}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}";
  return spec;
}

}  // namespace tandem::text
