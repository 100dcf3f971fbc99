#include "eval/items.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/json_value.h"
#include "numerics/digest.h"

namespace tandem::eval {
namespace {

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_data", std::move(message));
}

Result<std::string> text_of(const JsonValue& json, std::string_view key) {
  const JsonValue* value = json.find(key);
  if (value == nullptr || (!value->is_string() && !value->is_number())) {
    return invalid("\"" + std::string(key) + "\" must be a text.");
  }
  if (value->as_string().empty()) return invalid("\"" + std::string(key) + "\" is empty.");
  return value->as_string();
}

Result<Question> read_question(const JsonValue& json) {
  Question out;
  TANDEM_TRY(question, text_of(json, "question"));
  TANDEM_TRY(answer, text_of(json, "answer"));
  out.question = std::move(question);
  out.answer = std::move(answer);
  return out;
}

Result<ChoiceQuestion> read_choice_question(const JsonValue& json) {
  ChoiceQuestion out;
  TANDEM_TRY(question, text_of(json, "question"));
  out.question = std::move(question);
  const JsonValue* choices = json.find("choices");
  if (choices == nullptr || choices->items().size() < 2)
    return invalid("\"choices\" must be an array of at least two texts.");
  for (const JsonValue& choice : choices->items()) {
    if (!choice.is_string() || choice.as_string().empty())
      return invalid("\"choices\" must hold texts that are not empty.");
    out.choices.push_back(choice.as_string());
  }
  const JsonValue* answer = json.find("answer");
  const auto index =
      answer != nullptr && answer->is_number() ? answer->as_integer() : std::optional<int64_t>();
  if (!index || *index < 0 || static_cast<size_t>(*index) >= out.choices.size())
    return invalid("\"answer\" must be the index of a choice, from 0.");
  out.answer = static_cast<size_t>(*index);
  return out;
}

template <typename Item>
Result<DataSet<Item>> read_lines(const std::string& path, Result<Item> (*read)(const JsonValue&)) {
  TANDEM_TRY(text, read_file(path));
  DataSet<Item> out;
  out.path = path;
  out.digest = numerics::to_hex(numerics::sha256(std::as_bytes(std::span(text))));
  size_t line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view words = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line;
    if (words.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = parse_json(words);
    if (!json) return item_error(path, line, json.error());
    if (!json->is_object())
      return item_error(path, line, Error{400, "invalid_data", "It is not a JSON object."});
    auto item = read(*json);
    if (!item) return item_error(path, line, item.error());
    item->line = line;
    out.items.push_back(*std::move(item));
  }
  if (out.items.empty()) return invalid(path + " holds no items.");
  return out;
}

// SplitMix64 (G. Steele et al. 2014).
uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

}  // namespace

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) return make_error(400, "file_not_found", path + " cannot be read.");
  return text;
}

Result<DataSet<Question>> read_questions(const std::string& path) {
  return read_lines<Question>(path, read_question);
}

Result<DataSet<ChoiceQuestion>> read_choice_questions(const std::string& path) {
  return read_lines<ChoiceQuestion>(path, read_choice_question);
}

tl::unexpected<Error> item_error(const std::string& path, size_t line, const Error& error) {
  return make_error(error.status, error.code,
                    path + " line " + std::to_string(line) + ": " + error.message);
}

std::vector<size_t> select_items(size_t count, size_t limit, std::optional<uint64_t> seed) {
  std::vector<size_t> out(count);
  std::iota(out.begin(), out.end(), size_t{0});
  if (limit == 0 || limit >= count) return out;
  if (seed) {
    uint64_t state = *seed;
    for (size_t i = 0; i < limit; ++i) std::swap(out[i], out[i + next_random(state) % (count - i)]);
  }
  out.resize(limit);
  std::ranges::sort(out);
  return out;
}

}  // namespace tandem::eval
