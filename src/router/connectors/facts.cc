#include "router/connectors/facts.h"

#include <algorithm>

// The state lies on the stack.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // the same hashes by the best instructions that the machine has
#endif

#include "router/connectors/connector.h"

namespace tandem::router {

namespace {

using Kind = JsonValue::Kind;

// One running hash over all bytes; what it was at each mark is an entry.
class PrefixHashes {
 public:
  explicit PrefixHashes(BodyFacts& facts) : facts_(facts) {
    XXH3_64bits_reset_withSeed(&state_, XXH3_64bits(facts.model.data(), facts.model.size()));
  }

  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t step = std::min(bytes.size(), mark_ - done_);
      XXH3_64bits_update(&state_, bytes.data(), step);
      bytes.remove_prefix(step);
      done_ += step;
      if (done_ == mark_) note();
    }
  }

 private:
  static constexpr size_t kOpeningStep = 256;
  static constexpr size_t kOpening = 1024;
  static constexpr size_t kNear = kPrefixChunkBytes * kPrefixChunks;

  void note() {
    const uint64_t hash = XXH3_64bits_digest(&state_);
    if (done_ <= kOpening) {
      facts_.opening = hash;
      mark_ = done_ < kOpening ? done_ + kOpeningStep : kPrefixChunkBytes;
      return;
    }
    if (done_ <= kNear) facts_.prefix.push_back(hash);
    if (done_ > kNear) {
      if (facts_.far.empty()) {  // its beginning is known already
        constexpr size_t kEach = kFarChunkBytes / kPrefixChunkBytes;
        for (size_t at = kEach - 1; at < kPrefixChunks; at += kEach)
          facts_.far.push_back(facts_.prefix[at]);
      }
      facts_.far.push_back(hash);
    }
    mark_ = done_ + (done_ < kNear ? kPrefixChunkBytes : kFarChunkBytes);
  }

  BodyFacts& facts_;
  XXH3_state_t state_ = {};  // resetting reads what it held before
  size_t done_ = 0;
  size_t mark_ = kOpeningStep;
};

class Reader {
 public:
  Reader(std::string_view body, BodyFacts& facts) : body_(body), facts_(facts) {}

  void read() {
    facts_.model = text("model").value_or("");
    facts_.stream = flag("stream");
    if (const auto options = object("stream_options"))
      facts_.include_usage = json_flag_of(options->text, options->scan.find("include_usage"));
    facts_.priority = json_integer_of(body_, find("priority")).value_or(0);
    facts_.prompt_logprobs = json_integer_of(body_, find("prompt_logprobs")).has_value();
    facts_.return_token_ids = flag("return_token_ids");
    facts_.own_rid = find("rid") != nullptr && find("rid")->kind != Kind::kNull;
    facts_.input_logprobs = wants_input_logprobs();
    read_limits();
    read_prompt();
    facts_.affinity_key = affinity();
  }

 private:
  struct Object {
    std::string_view text;
    JsonScan scan;
  };

  const JsonMemberSpan* find(std::string_view name) const { return facts_.scan.find(name); }
  std::optional<std::string> text(std::string_view name) const {
    return json_text_of(body_, find(name));
  }
  bool flag(std::string_view name) const { return json_flag_of(body_, find(name)); }

  std::optional<Object> object(std::string_view name) const {
    const JsonMemberSpan* const member = find(name);
    if (member == nullptr || member->kind != Kind::kObject) return std::nullopt;
    const std::string_view value = json_value_of(body_, *member);
    auto scan = scan_json(value);
    if (!scan) return std::nullopt;
    return Object{value, std::move(*scan)};
  }

  bool wants_input_logprobs() const {
    switch (facts_.api) {
      case Api::kGenerate:
        return returns_logprobs();
      case Api::kCompletions:
        return flag("echo") && json_integer_of(body_, find("logprobs")).has_value();
      case Api::kChat:
        return flag("logprobs") && flag("return_meta_info");
      default:
        return false;
    }
  }

  // A batch has a list of flags.
  bool returns_logprobs() const {
    const JsonMemberSpan* const wish = find("return_logprob");
    return wish != nullptr && json_value_of(body_, *wish).find("true") != std::string_view::npos;
  }

  static int32_t count(std::optional<int64_t> number) {
    return static_cast<int32_t>(std::clamp<int64_t>(number.value_or(1), 1, 1 << 20));
  }

  void read_limits() {
    const bool nested = facts_.api == Api::kGenerate || facts_.api == Api::kInference;
    const auto sampling = nested ? object("sampling_params") : std::nullopt;
    if (nested && !sampling) return;
    const std::string_view text = nested ? sampling->text : body_;
    const JsonScan& scan = nested ? sampling->scan : facts_.scan;
    facts_.n = count(json_integer_of(text, scan.find("n")));
    facts_.best_of = count(json_integer_of(text, scan.find("best_of")));
    for (const char* const name :
         {"max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens"}) {
      facts_.max_tokens = json_integer_of(text, scan.find(name));
      if (facts_.max_tokens) break;
    }
  }

  std::string affinity() const {
    if (auto key = text("prompt_cache_key"); key && !key->empty()) return std::move(*key);
    if (const auto session = object("session_params")) {
      auto id = json_text_of(session->text, session->scan.find("session_id"));
      if (!id) id = json_text_of(session->text, session->scan.find("id"));
      if (id && !id->empty()) return std::move(*id);
    }
    if (const auto metadata = object("metadata")) {
      if (auto user = json_text_of(metadata->text, metadata->scan.find("user_id")))
        return session_of(std::move(*user));
    }
    return text("user").value_or("");
  }

  // An agent writes a JSON object into metadata.user_id, with its session in it.
  static std::string session_of(std::string user) {
    if (!user.starts_with('{')) return user;
    const auto scan = scan_json(user);
    if (!scan) return user;
    auto session = json_text_of(user, scan->find("session_id"));
    return session && !session->empty() ? std::move(*session) : user;
  }

  // The members that make up the prompt, in the order in which templates render them. The last is
  // the one that grows.
  std::vector<std::string_view> prompt_members() const {
    switch (facts_.api) {
      case Api::kChat:
      case Api::kMessages:
        return {"tools", "system", "messages"};
      case Api::kResponses:
        return {"tools", "instructions", "input"};
      case Api::kCompletions:
        return {"prompt"};
      case Api::kGenerate:
        return {find("input_ids") != nullptr ? "input_ids" : "text"};
      case Api::kInference:
        return {"token_ids"};
      case Api::kOther:
        return {find("input") != nullptr ? "input" : "messages"};
    }
    return {};
  }

  void read_prompt() {
    const std::vector<std::string_view> names = prompt_members();
    PrefixHashes hashes(facts_);
    for (const std::string_view name : names) {
      const JsonMemberSpan* const member = find(name);
      if (member == nullptr) continue;
      const bool last = name == names.back();
      const auto bytes = static_cast<int64_t>(member->value_end - member->value_begin);
      facts_.prompt_bytes += bytes;
      const bool ids = member->kind == Kind::kArray && member->first == Kind::kNumber;
      facts_.estimated_tokens += ids ? static_cast<int64_t>(member->elements) : (bytes + 3) / 4;
      if (last) read_batch(*member);
      if (facts_.batch > 1) break;
      std::string_view value = json_value_of(body_, *member);
      // What closes the list moves as it grows.
      if (last && member->kind != Kind::kNumber) value.remove_suffix(1);
      hashes.add(value);
      // Where one member ends matters, too.
      if (!last) hashes.add(std::string_view("\0", 1));
    }
    if (facts_.batch <= 1) return;
    facts_.prefix.clear();
    facts_.far.clear();
    facts_.opening = 0;
  }

  void read_batch(const JsonMemberSpan& prompt) {
    const bool prompts = facts_.api == Api::kCompletions || facts_.api == Api::kGenerate ||
                         facts_.api == Api::kInference || facts_.api == Api::kOther;
    if (!prompts || prompt.kind != Kind::kArray || prompt.elements == 0) return;
    if (prompt.first == Kind::kString || prompt.first == Kind::kArray)
      facts_.batch = static_cast<int32_t>(std::min<size_t>(prompt.elements, 1 << 20));
  }

  std::string_view body_;
  BodyFacts& facts_;
};

}  // namespace

Result<BodyFacts> read_facts(Api api, std::string_view body) {
  BodyFacts facts;
  facts.api = api;
  TANDEM_TRY(scan, scan_json(body));
  if (scan.is_array()) return make_error(400, "invalid_json", "The JSON body must be an object.");
  if (const auto twice = scan.duplicate(controlled_members())) {
    return make_error(400, "duplicate_member",
                      "'" + *twice + "' stands twice in the body; remove one", "/" + *twice);
  }
  facts.scan = std::move(scan);
  Reader(body, facts).read();
  return facts;
}

}  // namespace tandem::router
