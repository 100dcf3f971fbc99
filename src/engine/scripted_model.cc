#include "engine/scripted_model.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "numerics/digest.h"

namespace tandem::engine {
namespace {

constexpr int32_t kHeadDim = 8;

class ScriptedModel final : public model::Model {
 public:
  ScriptedModel(Script script, std::shared_ptr<const text::Tokenizer> tokenizer, int32_t max_rows)
      : script_(std::move(script)), tokenizer_(std::move(tokenizer)), max_rows_(max_rows) {
    config_.architecture = "scripted";
    // More than one, so that layer order matters.
    config_.layers = script_.windows.empty() ? 2 : static_cast<int32_t>(script_.windows.size()) + 1;
    config_.kv_heads = config_.heads = 1;
    config_.head_dim = kHeadDim;
    config_.hidden = kHeadDim;
    config_.vocab = tokenizer_->vocab_size();
    config_.context_length = script_.context_length;
    marker_ = tokenizer_->encode(script_.marker, {.parse_special = true});
  }

  const model::ModelConfig& config() const override { return config_; }
  ops::PageLayout page_layout(int32_t block_tokens) const override {
    const bool one = script_.windows.empty();
    return {.dtype = ops::KvDtype::kF32,
            .layers = one ? config_.layers : 1,
            .kv_heads = 1,
            .head_dim = kHeadDim,
            .block_tokens = block_tokens,
            .groups = one ? 1 : config_.layers};
  }
  std::vector<model::PageGroup> page_groups() const override {
    if (script_.windows.empty()) return model::Model::page_groups();
    std::vector<model::PageGroup> groups{{.window = 0, .layers = {0}}};
    for (const int32_t window : script_.windows)
      groups.push_back({.window = window, .layers = {static_cast<int32_t>(groups.size())}});
    return groups;
  }
  model::ModelMemory memory() const override { return {}; }
  int32_t max_rows() const override { return max_rows_; }
  std::string numeric_path() const override { return "scripted-1"; }

  Status forward(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                 std::span<float> logits) override {
    const auto pause = std::chrono::duration<double, std::milli>(
        script_.step_ms + script_.row_ms * static_cast<double>(batch.tokens.size()));
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
      if (pause.count() > 0) std::this_thread::sleep_for(pause / config_.layers);
      for (const auto& sequence : batch.sequences) write(batch, sequence, pages, layer);
      if (batch.layer_done) batch.layer_done(layer);
    }
    if (!script_.windows.empty()) check_windows(batch, pages);
    const auto vocab = static_cast<size_t>(config_.vocab);
    for (size_t i = 0; i < batch.logit_rows.size(); ++i)
      predict(known(batch, batch.logit_rows[i], pages), logits.subspan(i * vocab, vocab));
    for (size_t i = 0; i < batch.hidden_rows.size(); ++i)
      describe(known(batch, batch.hidden_rows[i], pages),
               batch.hidden_out.subspan(i * kHeadDim, kHeadDim));
    return {};
  }

 private:
  // Where the layer's key of a position begins; nullptr when the page is not there.
  static float* slot(const ops::SequenceRows& sequence, int32_t position,
                     const ops::PageArenaView& pages, int32_t layer) {
    const int32_t block = pages.layout.block_tokens;
    const int32_t groups = pages.layout.groups;
    const int32_t group = groups > 1 ? layer : 0;
    const auto at = static_cast<size_t>(position / block * groups + group);
    if (at >= sequence.pages.size() || sequence.pages[at] < 0) return nullptr;
    std::byte* page = pages.page(sequence.pages[at]);
    const int32_t in_page = groups > 1 ? 0 : layer;
    return reinterpret_cast<float*>(page + pages.layout.k_offset(in_page, 0)) + position % block;
  }

  static void write(const ops::ForwardBatch& batch, const ops::SequenceRows& sequence,
                    const ops::PageArenaView& pages, int32_t layer) {
    for (int32_t i = 0; i < sequence.row_count; ++i) {
      // Ids below 2^24 are exact in float32. Layers hold different values, so that a layer in the
      // wrong place shows.
      const int32_t token = batch.tokens[static_cast<size_t>(sequence.first_row + i)];
      float* const to = slot(sequence, sequence.first_position + i, pages, layer);
      if (to != nullptr) *to = static_cast<float>(token + layer);
    }
  }

  static std::optional<int32_t> read(const ops::SequenceRows& sequence, int32_t position,
                                     const ops::PageArenaView& pages, int32_t layer) {
    const float* const from = slot(sequence, position, pages, layer);
    // Also false for what is no number.
    if (from == nullptr || !(*from >= 0 && *from < float{1 << 24})) return std::nullopt;
    return static_cast<int32_t>(*from) - layer;
  }

  // Every layer holds the same tokens where the first row of this pass, or a later one, sees them.
  bool intact(const ops::SequenceRows& sequence, int32_t length, const ops::PageArenaView& pages,
              std::vector<int32_t>& tokens) const {
    for (int32_t position = 0; position < length; ++position) {
      const auto token = read(sequence, position, pages, 0);
      if (!token || *token < 0 || *token >= config_.vocab) return false;
      tokens.push_back(*token);
    }
    for (int32_t layer = 1; layer < config_.layers; ++layer) {
      const int32_t window =
          script_.windows.empty() ? 0 : script_.windows[static_cast<size_t>(layer - 1)];
      const int32_t first = window > 0 ? std::max(sequence.first_position - window + 1, 0) : 0;
      for (int32_t position = first; position < length; ++position) {
        if (read(sequence, position, pages, layer) != tokens[static_cast<size_t>(position)])
          return false;
      }
    }
    return true;
  }

  // Passes that sample nothing see their windows too: what they miss stays visible.
  void check_windows(const ops::ForwardBatch& batch, const ops::PageArenaView& pages) const {
    for (const auto& sequence : batch.sequences) {
      const int32_t length = sequence.first_position + sequence.row_count;
      std::vector<int32_t> tokens;
      float* const last = slot(sequence, length - 1, pages, 0);
      if (!intact(sequence, length, pages, tokens) && last != nullptr) *last = -1;
    }
  }

  // The tokens up to a row, as they stand in the pages; nothing when the pages are not intact.
  std::optional<std::vector<int32_t>> known(const ops::ForwardBatch& batch, int32_t row,
                                            const ops::PageArenaView& pages) const {
    const auto sequence = std::ranges::find_if(batch.sequences, [&](const ops::SequenceRows& s) {
      return row >= s.first_row && row < s.first_row + s.row_count;
    });
    const int32_t length = sequence->first_position + row - sequence->first_row + 1;
    std::vector<int32_t> tokens;
    if (!intact(*sequence, length, pages, tokens)) return std::nullopt;
    return tokens;
  }

  const Script::Reply* find_reply(const std::string& prompt) const {
    for (const auto& reply : script_.replies) {
      if (prompt.find(reply.when) != std::string::npos) return &reply;
    }
    return nullptr;
  }

  void predict(const std::optional<std::vector<int32_t>>& tokens, std::span<float> logits) const {
    std::ranges::fill(logits, 0.0F);
    const auto say = [&](std::span<const int32_t> reply, size_t at) {
      int32_t token = at < reply.size() ? reply[at] : tokenizer_->eos();
      if (token < 0 || token >= config_.vocab) token = std::max(tokenizer_->eos(), 0);
      logits[static_cast<size_t>(token)] = 100.0F;
    };
    if (!tokens) return say(tokenizer_->encode("[the KV cache is corrupt]"), 0);
    const auto at = std::find_end(tokens->begin(), tokens->end(), marker_.begin(), marker_.end());
    const auto begin = at == tokens->end() || marker_.empty()
                           ? tokens->end()
                           : at + static_cast<long>(marker_.size());
    const std::string prompt = tokenizer_->decode(std::span(tokens->begin(), begin), true);
    const std::span<const int32_t> said(begin, tokens->end());
    const Script::Reply* reply = find_reply(prompt);
    if (reply == nullptr && script_.noise > 0) return make_noise(*tokens, logits);
    if (reply == nullptr) return say({}, 0);
    if (reply->nan_at == static_cast<int32_t>(said.size())) {
      std::ranges::fill(logits, std::numeric_limits<float>::quiet_NaN());
    } else if (!reply->choices.empty()) {
      bool any = false;
      for (const std::string& choice : reply->choices) {
        const auto ids = tokenizer_->encode(fill(choice, prompt));
        const bool fits = ids.size() >= said.size() &&
                          std::ranges::equal(std::span(ids).first(said.size()), said);
        if (fits) say(ids, said.size());
        any = any || fits;
      }
      if (!any) say({}, 0);
    } else if (!reply->tokens.empty()) {
      say(reply->tokens, said.size());
    } else {
      say(tokenizer_->encode(fill(reply->reply, prompt)), said.size());
    }
  }

  void make_noise(const std::vector<int32_t>& tokens, std::span<float> logits) const {
    const uint64_t text = numerics::xxh3(std::as_bytes(std::span(tokens)));
    for (size_t i = 0; i < logits.size(); ++i) {
      const uint64_t of_token[2] = {text, i};
      const uint64_t bits = numerics::xxh3(std::as_bytes(std::span(of_token)));
      logits[i] = static_cast<float>(static_cast<double>(bits >> 11) * 0x1.0p-53 * script_.noise);
    }
  }

  void describe(const std::optional<std::vector<int32_t>>& tokens, std::span<float> hidden) const {
    const Script::Reply* reply = tokens ? find_reply(tokenizer_->decode(*tokens, true)) : nullptr;
    const bool numbers = tokens && (reply == nullptr || reply->nan_at != 0);
    for (size_t i = 0; i < hidden.size(); ++i) {
      hidden[i] = numbers
                      ? scripted_hidden(tokens->back(), static_cast<int32_t>(tokens->size()) - 1,
                                        static_cast<int32_t>(i))
                      : std::numeric_limits<float>::quiet_NaN();
    }
  }

  static std::string fill(std::string reply, const std::string& prompt) {
    std::vector<std::string> facts;
    for (size_t at = prompt.find("fact-"); at != std::string::npos;
         at = prompt.find("fact-", at + 5)) {
      facts.push_back(prompt.substr(at, prompt.find_first_of(" .,!?\n<", at) - at));
    }
    for (size_t i = 0; i < facts.size(); ++i) {
      const std::string key = "{echo:" + std::to_string(i) + "}";
      if (const size_t at = reply.find(key); at != std::string::npos)
        reply.replace(at, key.size(), facts[i]);
    }
    return reply;
  }

  Script script_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  int32_t max_rows_;
  model::ModelConfig config_;
  std::vector<int32_t> marker_;
};

std::string text_or(const JsonValue& json, std::string_view key, const std::string& fallback) {
  const JsonValue* value = json.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : fallback;
}

}  // namespace

float scripted_hidden(int32_t token, int32_t position, int32_t index) {
  return static_cast<float>((token * (index + 3) + position) % 13 - 6);
}

Result<Script> read_script(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(400, "model_not_found", "The script " + path + " cannot be read.");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto json = parse_json(text);
  if (!json)
    return make_error(400, "invalid_model",
                      "The script " + path + " is not JSON: " + json.error().message);
  Script script;
  const std::string tokenizer = text_or(*json, "tokenizer", "");
  if (tokenizer.empty())
    return make_error(400, "invalid_model", "The script " + path + " names no \"tokenizer\".");
  script.tokenizer = (std::filesystem::path(path).parent_path() / tokenizer).string();
  script.marker = text_or(*json, "marker", script.marker);
  script.chat_template = text_or(*json, "chat_template", "");
  const auto number = [&](std::string_view key, double fallback) {
    const JsonValue* value = json->find(key);
    return value == nullptr ? fallback : value->as_double().value_or(fallback);
  };
  script.context_length =
      static_cast<int32_t>(std::clamp(number("context_length", 4096), 16.0, 1e6));
  script.step_ms = static_cast<int32_t>(std::clamp(number("step_ms", 0), 0.0, 60000.0));
  script.noise = std::clamp(number("noise", 0), 0.0, 1000.0);
  script.row_ms = std::clamp(number("row_ms", 0), 0.0, 1000.0);
  if (const JsonValue* windows = json->find("windows")) {
    for (const JsonValue& window : windows->items())
      script.windows.push_back(
          static_cast<int32_t>(std::clamp(window.as_double().value_or(0), 0.0, 1e6)));
  }
  if (const JsonValue* replies = json->find("replies")) {
    for (const JsonValue& reply : replies->items()) {
      Script::Reply& out = script.replies.emplace_back();
      out.when = text_or(reply, "when", "");
      out.reply = text_or(reply, "reply", "");
      if (const JsonValue* choices = reply.find("choices")) {
        for (const JsonValue& choice : choices->items())
          out.choices.push_back(choice.is_string() ? choice.as_string() : "");
      }
      if (const JsonValue* tokens = reply.find("tokens")) {
        for (const JsonValue& token : tokens->items())
          out.tokens.push_back(static_cast<int32_t>(token.as_double().value_or(0)));
      }
      if (const JsonValue* at = reply.find("nan_at"))
        out.nan_at = static_cast<int32_t>(at->as_double().value_or(-1));
    }
  }
  return script;
}

std::unique_ptr<model::Model> make_scripted_model(Script script,
                                                  std::shared_ptr<const text::Tokenizer> tokenizer,
                                                  int32_t max_rows) {
  return std::make_unique<ScriptedModel>(std::move(script), std::move(tokenizer), max_rows);
}

}  // namespace tandem::engine
