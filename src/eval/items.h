// The items of a data set: one JSON object in each line. Errors name the file and the line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem::eval {

struct Question {  // {"question": text, "answer": text or number}
  std::string question;
  std::string answer;
  size_t line = 0;
};

struct ChoiceQuestion {  // {"question": text, "choices": [text, ...], "answer": index from 0}
  std::string question;
  std::vector<std::string> choices;
  size_t answer = 0;
  size_t line = 0;
};

// A file read whole, with its digest: results that are resumed must be of the same data.
template <typename Item>
struct DataSet {
  std::string path;
  std::string digest;  // SHA-256, hex
  std::vector<Item> items;
};

// Blank lines are skipped, other keys ignored. Errors: 400 "invalid_data".
Result<DataSet<Question>> read_questions(const std::string& path);
Result<DataSet<ChoiceQuestion>> read_choice_questions(const std::string& path);

// "FILE line N: message", as everything that goes wrong with an item is told.
tl::unexpected<Error> item_error(const std::string& path, size_t line, const Error& error);

// Which of `count` items to take, ascending: all, or the first `limit` (0: no limit), or with a
// seed that many drawn at random, always the same for the same seed.
std::vector<size_t> select_items(size_t count, size_t limit, std::optional<uint64_t> seed);

// The whole file. 400 "file_not_found".
Result<std::string> read_file(const std::string& path);

}  // namespace tandem::eval
