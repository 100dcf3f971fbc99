// What tests of the scheduler share.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/scheduler/scheduler.h"

namespace tandem::engine {

// Pages as counts: block_tokens tokens a page, no sharing unless `cached` says how much of a prompt
// is there.
class CountingKv final : public KvPort {
 public:
  CountingKv(int32_t pages, int32_t block) : free_(pages), total_(pages), block_(block) {}
  std::optional<int32_t> admit(SequenceId id, std::span<const int32_t> tokens,
                               const KvScope& /*scope*/, int32_t headroom) override {
    const int32_t need = blocks(static_cast<int32_t>(tokens.size()));
    if (need + headroom > free_) return std::nullopt;
    free_ -= need;
    table_[id].assign(static_cast<size_t>(need), 0);
    const auto at = cached.find(id);
    return at == cached.end() ? 0 : at->second;
  }
  int32_t expect_cached(SequenceId id, std::span<const int32_t> /*tokens*/,
                        const KvScope& /*scope*/) override {
    const auto at = cached.find(id);
    return at == cached.end() ? 0 : at->second;
  }
  bool extend(SequenceId id, int32_t tokens) override {
    auto& pages = table_[id];
    while (static_cast<int32_t>(pages.size()) < blocks(tokens)) {
      if (free_ == 0) return false;
      --free_;
      pages.push_back(0);
    }
    return true;
  }
  std::span<const int32_t> pages(SequenceId id, int32_t tokens) const override {
    return std::span(table_.at(id)).first(static_cast<size_t>(blocks(tokens)));
  }
  void computed(SequenceId id, std::span<const int32_t> tokens, int32_t count) override {
    ASSERT_LE(count, static_cast<int32_t>(tokens.size())) << "only verified tokens";
    final[id] = count;
  }
  bool truncate(SequenceId id, int32_t tokens, int32_t rewritten_from) override {
    if (rewritten_from < cannot_rewrite_before) return false;
    auto& pages = table_.at(id);
    free_ += static_cast<int32_t>(pages.size()) - blocks(tokens);
    pages.resize(static_cast<size_t>(blocks(tokens)));
    return true;
  }
  bool could_fit(int32_t tokens) const override { return blocks(tokens) <= total_ - lost; }
  void release(SequenceId id) override {
    free_ += static_cast<int32_t>(table_[id].size());
    table_.erase(id);
  }
  void reside(SequenceId id, int32_t tokens) {
    free_ -= blocks(tokens);
    table_[id].assign(static_cast<size_t>(blocks(tokens)), 0);
  }
  bool all_free() const { return free_ == total_ && table_.empty(); }
  std::map<SequenceId, int32_t> cached;
  int32_t cannot_rewrite_before = 0;
  int32_t lost = 0;                     // pages in quarantine
  std::map<SequenceId, int32_t> final;  // what computed() was told last

 private:
  int32_t blocks(int32_t tokens) const { return (tokens + block_ - 1) / block_; }
  int32_t free_, total_, block_;
  std::map<SequenceId, std::vector<int32_t>> table_;
};

inline SequenceSpec spec_of(SequenceId id, size_t prompt, const std::string& tenant = "") {
  SequenceSpec spec;
  spec.id = id;
  spec.prompt.assign(prompt, 1);
  spec.tenant = tenant;
  return spec;
}

inline protocol::StepOutcome outcome_of(const protocol::StepPlan& plan, bool failed = false) {
  protocol::StepOutcome outcome{plan.step, {}, ""};
  for (const auto& s : plan.sequences) {
    if (s.sample) outcome.sampled.push_back({s.sequence, 7, 0, failed});
  }
  return outcome;
}

}  // namespace tandem::engine
