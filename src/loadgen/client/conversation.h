// Conversation: one session's messages as they are sent, and the request bodies made of them.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loadgen/dataset.h"
#include "loadgen/prompt_text.h"

namespace tandem::loadgen {

enum class Api : uint8_t { kChat, kCompletions };

struct BodyOptions {
  Api api = Api::kChat;
  std::string model;
  bool token_ids = false;   // of plain completions: exact lengths for any tokenizer
  uint32_t least_id = 100;  // ids are random ones in [least_id, least_id + id_count)
  uint32_t id_count = 20000;
  WordRate words;
  std::string max_tokens_name = "max_tokens";
  bool ask_usage = true;
  std::string extra;  // members of a JSON object, for example "temperature":0
};

class Conversation {
 public:
  explicit Conversation(const BodyOptions& options) : options_(options) {}

  // The next request's messages; `answer` is the text of the last reply.
  void apply(const Turn& turn, const std::string& answer);
  std::string body(int32_t max_tokens) const;
  // As planned: stands for what a server does not count.
  int64_t planned_tokens() const;

 private:
  struct Part {
    Role role = Role::kUser;
    std::string text;
    std::vector<uint32_t> ids;
    int64_t tokens = 0;
  };
  Part make(const Segment& segment) const;
  void append_messages(std::string& out) const;
  void append_prompt(std::string& out) const;

  const BodyOptions& options_;  // outlives this
  std::vector<Part> parts_;
  int32_t last_output_ = 0;
};

}  // namespace tandem::loadgen
