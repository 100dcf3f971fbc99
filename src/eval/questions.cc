#include "eval/questions.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "eval/items.h"
#include "eval/journal.h"
#include "eval/progress.h"
#include "eval/scoring.h"

namespace tandem::eval {
namespace {

constexpr std::string_view kPlace = "{question}";

// Runs `work` for the items that the journal lacks on some threads; the first error ends the run.
Status for_each_missing(const std::vector<size_t>& items, const Journal& journal, int32_t parallel,
                        const std::function<Status(size_t)>& work) {
  std::vector<size_t> missing;
  for (const size_t item : items) {
    if (journal.find(item) == nullptr) missing.push_back(item);
  }
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Status first;
  const auto run = [&] {
    for (size_t i = next++; i < missing.size(); i = next++) {
      if (auto done = work(missing[i]); !done) {
        const std::lock_guard lock(mutex);
        if (first) first = std::move(done);
        next = missing.size();
      }
    }
  };
  std::vector<std::thread> helpers;
  const auto threads = std::min(static_cast<size_t>(std::max(parallel, 1)), missing.size());
  for (size_t i = 1; i < threads; ++i) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
  return first;
}

// How many of some results are right, under a key.
size_t count_true(const Journal& journal, const std::vector<size_t>& items, std::string_view key) {
  return static_cast<size_t>(std::ranges::count_if(items, [&](size_t item) {
    const JsonValue* value = journal.find(item)->find(key);
    return value != nullptr && value->as_bool();
  }));
}

size_t count_finished(const Journal& journal, const std::vector<size_t>& items) {
  return static_cast<size_t>(
      std::ranges::count_if(items, [&](size_t item) { return journal.find(item) != nullptr; }));
}

void set_share(JsonValue& out, const std::string& name, size_t right, size_t total) {
  const Interval interval = wilson_interval(right, total);
  out.set(name, JsonValue::real(static_cast<double>(right) /
                                static_cast<double>(std::max<size_t>(total, 1))));
  out.set(name + "_interval_95",
          JsonValue::array({JsonValue::real(interval.low), JsonValue::real(interval.high)}));
}

// Tells the share of right items while they come in.
class RightSoFar {
 public:
  RightSoFar(const Journal& journal, const std::vector<size_t>& items, std::string key)
      : key_(std::move(key)),
        progress_("items", static_cast<int64_t>(items.size()),
                  static_cast<int64_t>(count_finished(journal, items))) {
    for (const size_t item : items) {
      if (const JsonValue* result = journal.find(item)) count(*result);
    }
  }
  void add(const JsonValue& result) {
    char note[64];
    {
      const std::lock_guard lock(mutex_);
      count(result);
      std::snprintf(note, sizeof(note), "%.1f %% right",
                    100.0 * static_cast<double>(right_) / static_cast<double>(total_));
    }
    progress_.advance(1, note);
  }

 private:
  void count(const JsonValue& result) {
    ++total_;
    const JsonValue* value = result.find(key_);
    right_ += value != nullptr && value->as_bool() ? 1 : 0;
  }

  std::mutex mutex_;
  std::string key_;
  size_t right_ = 0;
  size_t total_ = 0;
  Progress progress_;
};

JsonValue run_identity(const char* name, const DataOptions& options, const std::string& digest,
                       const std::string& few_shot_digest, size_t shots) {
  JsonValue run = JsonValue::object({{"eval", JsonValue::string(name)}});
  for (const auto& [key, value] : options.identity.members()) run.set(key, value);
  run.set("data_digest", JsonValue::string(digest));
  run.set("few_shot_digest", JsonValue::string(few_shot_digest));
  run.set("shots", JsonValue::integer(static_cast<int64_t>(shots)));
  run.set("format", JsonValue::string(options.format));
  return run;
}

JsonValue message(const char* role, std::string content) {
  return JsonValue::object(
      {{"role", JsonValue::string(role)}, {"content", JsonValue::string(std::move(content))}});
}

// The examples before every question. In a chat they are turns, else text.
struct Shots {
  std::string text;
  JsonValue messages = JsonValue::array();
};

// Joins an answer to what asks for it.
std::string answer_after(const std::string& asked, const std::string& answer) {
  const bool spaced = asked.empty() || asked.back() == ' ' || asked.back() == '\n';
  return (spaced ? "" : " ") + answer;
}

template <typename Item>
Result<DataSet<Item>> read_shots(const DataOptions& options,
                                 Result<DataSet<Item>> (*read)(const std::string&)) {
  if (options.few_shot.empty()) return DataSet<Item>{};
  TANDEM_TRY(shots, read(options.few_shot));
  shots.items.resize(std::min(shots.items.size(), static_cast<size_t>(options.shots)));
  return shots;
}

Status check_format(const std::string& format) {
  if (format.find(kPlace) != std::string::npos) return {};
  return make_error(400, "invalid_option", "--format lacks {question}.");
}

}  // namespace

std::string format_question(const std::string& format, const std::string& question) {
  std::string out = format;
  if (const size_t at = out.find(kPlace); at != std::string::npos)
    out.replace(at, kPlace.size(), question);
  return out;
}

Result<JsonValue> run_qa(Generator& generator, const QaOptions& options) {
  const DataOptions& data = options.data;
  TANDEM_CHECK(check_format(data.format));
  TANDEM_TRY(set, read_questions(data.data));
  TANDEM_TRY(examples, read_shots<Question>(data, read_questions));
  Shots shots;
  if (!options.system.empty()) shots.messages.push_back(message("system", options.system));
  for (const Question& example : examples.items) {
    const std::string asked = format_question(data.format, example.question);
    shots.text += asked + answer_after(asked, example.answer) + "\n\n";
    shots.messages.push_back(message("user", example.question));
    shots.messages.push_back(message("assistant", example.answer));
  }
  const auto items = select_items(set.items.size(), static_cast<size_t>(data.limit), data.seed);
  JsonValue run = run_identity("qa", data, set.digest, examples.digest, examples.items.size());
  run.set("chat", JsonValue::boolean(options.chat));
  run.set("system", JsonValue::string(options.system));
  run.set("temperature", JsonValue::real(options.generation.temperature));
  run.set("seed", JsonValue::unsigned_integer(options.generation.seed));
  run.set("max_tokens", JsonValue::integer(options.generation.max_tokens));
  TANDEM_TRY(journal, Journal::open(data.journal, run));
  RightSoFar so_far(journal, items, "right");
  TANDEM_CHECK(for_each_missing(items, journal, options.parallel, [&](size_t i) -> Status {
    const Question& item = set.items[i];
    Prompt prompt;
    if (options.chat) {
      prompt.messages = shots.messages;
      prompt.messages.push_back(message("user", item.question));
    } else {
      prompt.text = shots.text + format_question(data.format, item.question);
    }
    const auto generated = generator.generate(prompt, options.generation);
    if (!generated) return item_error(set.path, item.line, generated.error());
    const std::string given = final_answer(generated->text);
    const JsonValue result = JsonValue::object(
        {{"right", JsonValue::boolean(!given.empty() && given == final_answer(item.answer))},
         {"answered", JsonValue::boolean(!given.empty())},
         {"cut", JsonValue::boolean(generated->cut)},
         {"answer", JsonValue::string(given)},
         {"text", JsonValue::string(generated->text)}});
    TANDEM_CHECK(journal.append(i, result));
    so_far.add(result);
    return {};
  }));
  run.set("items", JsonValue::integer(static_cast<int64_t>(items.size())));
  const size_t right = count_true(journal, items, "right");
  run.set("right", JsonValue::integer(static_cast<int64_t>(right)));
  set_share(run, "accuracy", right, items.size());
  run.set("without_answer", JsonValue::integer(static_cast<int64_t>(
                                items.size() - count_true(journal, items, "answered"))));
  run.set("cut", JsonValue::integer(static_cast<int64_t>(count_true(journal, items, "cut"))));
  return run;
}

Result<JsonValue> run_choice(Scorer& scorer, const DataOptions& options) {
  TANDEM_CHECK(check_format(options.format));
  TANDEM_TRY(set, read_choice_questions(options.data));
  TANDEM_TRY(examples, read_shots<ChoiceQuestion>(options, read_choice_questions));
  std::string shots;
  for (const ChoiceQuestion& example : examples.items) {
    const std::string asked = format_question(options.format, example.question);
    shots += asked + answer_after(asked, example.choices[example.answer]) + "\n\n";
  }
  const auto items =
      select_items(set.items.size(), static_cast<size_t>(options.limit), options.seed);
  JsonValue run =
      run_identity("choice", options, set.digest, examples.digest, examples.items.size());
  TANDEM_TRY(journal, Journal::open(options.journal, run));
  RightSoFar so_far(journal, items, "right");
  TANDEM_CHECK(for_each_missing(items, journal, scorer.parallel(), [&](size_t i) -> Status {
    const ChoiceQuestion& item = set.items[i];
    const std::string context = shots + format_question(options.format, item.question);
    std::vector<std::string> continuations;
    continuations.reserve(item.choices.size());
    for (const std::string& choice : item.choices)
      continuations.push_back(answer_after(context, choice));
    const auto scores = scorer.score(context, continuations);
    if (!scores) return item_error(set.path, item.line, scores.error());
    std::vector<double> raw;
    std::vector<double> normalized;
    JsonValue logprobs = JsonValue::array();
    for (size_t k = 0; k < scores->size(); ++k) {
      raw.push_back((*scores)[k].logprob);
      normalized.push_back(raw.back() / static_cast<double>(item.choices[k].size()));
      logprobs.push_back(JsonValue::real(raw.back()));
    }
    const auto best = [](const std::vector<double>& values) {
      return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
    };
    const JsonValue result = JsonValue::object(
        {{"right", JsonValue::boolean(best(raw) == item.answer)},
         {"right_normalized", JsonValue::boolean(best(normalized) == item.answer)},
         {"logprobs", std::move(logprobs)}});
    TANDEM_CHECK(journal.append(i, result));
    so_far.add(result);
    return {};
  }));
  run.set("items", JsonValue::integer(static_cast<int64_t>(items.size())));
  set_share(run, "accuracy", count_true(journal, items, "right"), items.size());
  set_share(run, "accuracy_normalized", count_true(journal, items, "right_normalized"),
            items.size());
  return run;
}

}  // namespace tandem::eval
