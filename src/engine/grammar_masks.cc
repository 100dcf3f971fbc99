#include "engine/grammar_masks.h"

#include <utility>

namespace tandem::engine {

grammar::VocabularyTable vocabulary_table(const text::Tokenizer& tokenizer, int32_t vocab) {
  grammar::VocabularyTable out;
  out.bytes.resize(static_cast<size_t>(vocab));
  const auto& types = tokenizer.spec().types;
  for (int32_t token = 0; token < std::min(vocab, tokenizer.vocab_size()); ++token) {
    const auto at = static_cast<size_t>(token);
    const auto type =
        at < types.size() ? static_cast<text::TokenType>(types[at]) : text::TokenType::kNormal;
    const bool unusable = type == text::TokenType::kUnknown || type == text::TokenType::kUnused;
    if (!unusable && !tokenizer.is_control(token)) out.bytes[at] = tokenizer.token_bytes(token);
  }
  for (const int32_t token : tokenizer.special_tokens()) {
    if (token < vocab) out.special.push_back({std::string(tokenizer.token_bytes(token)), token});
  }
  out.end_of_generation = tokenizer.spec().end_of_generation;
  return out;
}

GrammarMasks::~GrammarMasks() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<GrammarMasks::Mask> GrammarMasks::start(grammar::Matcher::Point point) {
  auto mask = std::make_shared<Mask>();
  mask->point = std::move(point);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(mask);
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  }
  wake_.notify_one();
  return mask;
}

void GrammarMasks::wait(const Mask& mask) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return mask.done || stop_; });
}

void GrammarMasks::loop() {
  while (true) {
    std::shared_ptr<Mask> mask;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) {
        done_.notify_all();
        return;
      }
      mask = std::move(queue_.front());
      queue_.pop_front();
    }
    mask->status = grammar::Matcher::mask_at(mask->point, mask->tokens);
    {
      const std::lock_guard lock(mutex_);
      mask->done = true;
    }
    done_.notify_all();
  }
}

}  // namespace tandem::engine
