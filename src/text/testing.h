// Helpers of this folder's tests: files and golden vocabularies.
#pragma once

#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json_value.h"
#include "text/tokenizer.h"

namespace tandem::text::testing {

// Processor time of this thread: unlike the clock on the wall, the same on a busy machine.
inline double cpu_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << "cannot read " << path;
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

inline std::string testdata(const std::string& name) {
  return std::string(TANDEM_SOURCE_DIR) + "/src/text/testdata/" + name;
}

inline JsonValue parse(std::string_view json) {
  Result<JsonValue> value = parse_json(json);
  EXPECT_TRUE(value) << value.error().message;
  return value ? *value : JsonValue();
}

inline std::vector<JsonValue> read_lines(const std::string& path) {
  std::vector<JsonValue> rows;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) rows.push_back(parse(line));
  return rows;
}

inline std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  Result<TokenizerSpec> spec = tokenizer_spec_from_json(parse(read_file(path)));
  EXPECT_TRUE(spec) << spec.error().message;
  auto tokenizer = Tokenizer::create(std::move(*spec));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return *tokenizer;
}

inline std::vector<int32_t> ids_of(const JsonValue& array) {
  std::vector<int32_t> ids;
  for (const JsonValue& item : array.items())
    ids.push_back(static_cast<int32_t>(*item.as_integer()));
  return ids;
}

}  // namespace tandem::text::testing
