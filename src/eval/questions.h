// Scores of data sets: answers that a model writes (GSM8K and the like) and choices that it ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json_value.h"
#include "base/result.h"
#include "eval/backend.h"

namespace tandem::eval {

struct DataOptions {
  std::string data;      // JSONL
  std::string few_shot;  // JSONL of the same kind, empty: none
  int32_t shots = 5;     // its first ones, put before each question
  std::string format = "Question: {question}\nAnswer:";
  int32_t limit = 0;  // items, 0: all
  std::optional<uint64_t> seed;
  std::string journal;
  JsonValue identity;  // what answers: part of the summary, and of what results depend on
};

struct QaOptions {
  DataOptions data;
  bool chat = false;
  std::string system;  // chat only
  Generation generation;
  int32_t parallel = 8;
};
// An item is right when final_answer() of the text equals that of the data set's answer.
Result<JsonValue> run_qa(Generator& generator, const QaOptions& options);

// The choice with the highest log-likelihood, once as it is ("accuracy") and once divided by the
// choice's bytes ("accuracy_normalized"), is compared with the answer; the first one wins ties.
Result<JsonValue> run_choice(Scorer& scorer, const DataOptions& options);

// `format` with {question} replaced.
std::string format_question(const std::string& format, const std::string& question);

}  // namespace tandem::eval
