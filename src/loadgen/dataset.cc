#include "loadgen/dataset.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/json_value.h"

namespace tandem::loadgen {

namespace {

uint64_t seed_of(uint64_t a, uint64_t b) { return mix64(a * 0x9e3779b97f4a7c15ULL + b + 1); }

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || !(value >= 0) ||
      value > kMostTokens)
    return std::nullopt;
  return value;
}

tl::unexpected<Error> bad_lengths(std::string_view text) {
  return make_error(400, "invalid_option",
                    "'" + std::string(text) +
                        "' is no length: they look like 512, 100-900, normal:512,128 or "
                        "lognormal:512,0.8");
}

class RandomDataset final : public Dataset {
 public:
  explicit RandomDataset(const RandomOptions& options) : options_(options), random_(options.seed) {}
  std::optional<Session> next() override {
    Session session;
    session.id = count_++;
    Turn turn;
    turn.append.push_back(
        {Role::kUser, seed_of(options_.seed, session.id), options_.input.draw(random_)});
    turn.output_tokens = options_.output.draw(random_);
    session.turns.push_back(std::move(turn));
    return session;
  }

 private:
  RandomOptions options_;
  Random random_;
  uint64_t count_ = 0;
};

class SharedPrefixDataset final : public Dataset {
 public:
  explicit SharedPrefixDataset(const SharedPrefixOptions& options)
      : options_(options), random_(options.seed), left_(static_cast<size_t>(options.prefixes)) {
    for (size_t i = 0; i < left_.size(); ++i) {
      lengths_.push_back(options_.prefix.draw(random_));
      left_[i] = {i, options_.questions};
    }
  }
  std::optional<Session> next() override {
    if (left_.empty()) return std::nullopt;
    const size_t chosen = random_.below(left_.size());
    const size_t prefix = left_[chosen].first;
    if (options_.questions > 0 && --left_[chosen].second == 0) {
      left_[chosen] = left_.back();
      left_.pop_back();
    }
    Session session;
    session.id = count_++;
    Turn turn;
    turn.append.push_back({Role::kSystem, seed_of(options_.seed, prefix), lengths_[prefix]});
    turn.append.push_back(
        {Role::kUser, seed_of(~options_.seed, session.id), options_.question.draw(random_)});
    turn.output_tokens = options_.output.draw(random_);
    session.turns.push_back(std::move(turn));
    return session;
  }

 private:
  SharedPrefixOptions options_;
  Random random_;
  std::vector<std::pair<size_t, int32_t>> left_;  // prefix, questions left
  std::vector<int32_t> lengths_;
  uint64_t count_ = 0;
};

class AgentDataset final : public Dataset {
 public:
  explicit AgentDataset(const AgentOptions& options) : options_(options), random_(options.seed) {
    system_ = {Role::kSystem, seed_of(options.seed, 0), options.system.draw(random_)};
  }
  std::optional<Session> next() override {
    Session session;
    session.id = count_++;
    session.has_key = true;
    const int32_t turns = std::clamp(options_.turns.draw(random_), 1, options_.most_turns);
    uint64_t part = seed_of(~options_.seed, session.id);
    for (int32_t i = 0; i < turns; ++i) {
      Turn turn;
      if (i == 0) {
        turn.append = {system_, {Role::kUser, part++, options_.question.draw(random_)}};
      } else {
        turn.think = options_.think_median * std::exp(random_.normal());
        turn.keep_answer = true;
        turn.append = {{Role::kTool, part++, options_.tool_result.draw(random_)}};
      }
      turn.output_tokens = options_.output.draw(random_);
      session.turns.push_back(std::move(turn));
    }
    return session;
  }

 private:
  AgentOptions options_;
  Random random_;
  Segment system_;
  uint64_t count_ = 0;
};

class ListedDataset final : public Dataset {
 public:
  ListedDataset(std::vector<Session> sessions, bool repeat, bool times)
      : sessions_(std::move(sessions)), repeat_(repeat), times_(times) {}
  bool has_times() const override { return times_; }
  std::optional<Session> next() override {
    if (sessions_.empty() || (count_ >= sessions_.size() && (!repeat_ || times_)))
      return std::nullopt;
    const uint64_t round = count_ / sessions_.size();
    Session session = sessions_[count_ % sessions_.size()];
    session.id = count_++;
    for (Turn& turn : session.turns) {
      for (Segment& segment : turn.append) {
        if (round > 0) segment.seed = seed_of(segment.seed, round);
      }
    }
    return session;
  }

 private:
  std::vector<Session> sessions_;
  bool repeat_;
  bool times_;
  uint64_t count_ = 0;
};

Result<Role> parse_role(const JsonValue* value) {
  for (const Role role : {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool}) {
    if (value != nullptr && value->as_string() == role_name(role)) return role;
  }
  return make_error(400, "bad_trace",
                    "has a message whose role is not system, user, assistant or tool");
}

Result<Turn> read_prompt(const JsonValue& json, int32_t output_tokens) {
  Turn turn;
  turn.output_tokens = output_tokens;
  for (const char* key : {"max_tokens", "output_tokens"}) {
    const JsonValue* const value = json.find(key);
    if (value == nullptr) continue;
    const int64_t tokens = value->as_integer().value_or(0);
    if (tokens < 1 || tokens > kMostTokens)
      return make_error(400, "bad_trace", std::string("has a bad ") + key);
    turn.output_tokens = static_cast<int32_t>(tokens);
  }
  if (const JsonValue* const prompt = json.find("prompt"); prompt != nullptr) {
    turn.append.push_back({Role::kUser, 0, 0, prompt->as_string()});
  } else if (const JsonValue* const messages = json.find("messages"); messages != nullptr) {
    for (const JsonValue& message : messages->items()) {
      TANDEM_TRY(role, parse_role(message.find("role")));
      const JsonValue* const content = message.find("content");
      if (content == nullptr || !content->is_string())
        return make_error(400, "bad_trace", "has a message whose content is not text");
      turn.append.push_back({role, 0, 0, content->as_string()});
    }
  }
  if (turn.append.empty() || (turn.append.size() == 1 && turn.append[0].text.empty()))
    return make_error(400, "bad_trace", "has neither a prompt nor messages");
  return turn;
}

}  // namespace

int32_t Lengths::draw(Random& random) const {
  double value = a;
  switch (kind) {
    case Kind::kFixed:
      break;
    case Kind::kUniform:
      value = a + std::floor(random.uniform() * (b - a + 1));
      break;
    case Kind::kNormal:
      value = a + b * random.normal();
      break;
    case Kind::kLogNormal:
      value = a * std::exp(b * random.normal());
      break;
  }
  return static_cast<int32_t>(std::clamp(std::round(value), 1.0, double{kMostTokens}));
}

Result<Lengths> parse_lengths(std::string_view text) {
  std::string_view rest = text;
  Lengths out;
  char separator = '-';
  if (rest.starts_with("normal:") || rest.starts_with("lognormal:")) {
    out.kind = rest.starts_with("n") ? Lengths::Kind::kNormal : Lengths::Kind::kLogNormal;
    rest.remove_prefix(rest.find(':') + 1);
    separator = ',';
  }
  const size_t at = rest.find(separator);
  const auto first = number(rest.substr(0, at));
  if (!first || *first < 1) return bad_lengths(text);
  out.a = *first;
  if (at == std::string_view::npos) {
    if (separator == ',') return bad_lengths(text);
    return out;
  }
  const auto second = number(rest.substr(at + 1));
  if (!second) return bad_lengths(text);
  out.b = *second;
  if (separator == '-') {
    out.kind = Lengths::Kind::kUniform;
    if (out.b < out.a) return bad_lengths(text);
  }
  if (out.kind == Lengths::Kind::kLogNormal && out.b > 10) return bad_lengths(text);
  return out;
}

std::string_view role_name(Role role) {
  constexpr std::array<std::string_view, 4> kNames = {"system", "user", "assistant", "tool"};
  return kNames[static_cast<size_t>(role)];
}

std::unique_ptr<Dataset> random_dataset(const RandomOptions& options) {
  return std::make_unique<RandomDataset>(options);
}
std::unique_ptr<Dataset> shared_prefix_dataset(const SharedPrefixOptions& options) {
  return std::make_unique<SharedPrefixDataset>(options);
}
std::unique_ptr<Dataset> agent_dataset(const AgentOptions& options) {
  return std::make_unique<AgentDataset>(options);
}
std::unique_ptr<Dataset> listed_dataset(std::vector<Session> sessions, bool repeat, bool times) {
  return std::make_unique<ListedDataset>(std::move(sessions), repeat, times);
}

Result<std::vector<Session>> read_prompts(std::string_view text, int32_t output_tokens) {
  std::vector<Session> sessions;
  for (size_t line_number = 1; !text.empty(); ++line_number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = "line " + std::to_string(line_number) + " of the trace ";
    const auto json = parse_json(line);
    if (!json) return make_error(400, "bad_trace", where + "is not JSON");
    auto turn = read_prompt(*json, output_tokens);
    if (!turn) return make_error(400, "bad_trace", where + turn.error().message);
    Session session;
    if (const JsonValue* const at = json->find("at"); at != nullptr)
      session.at = std::max(0.0, at->as_double().value_or(0));
    session.turns.push_back(std::move(*turn));
    sessions.push_back(std::move(session));
  }
  if (sessions.empty()) return make_error(400, "bad_trace", "the trace is empty");
  return sessions;
}

}  // namespace tandem::loadgen
