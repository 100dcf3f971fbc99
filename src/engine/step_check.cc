// The side of Executor that distrusts: one pass over all pages before a step reads them, and
// digests of those that it completed.
#include <algorithm>
#include <utility>

#include "engine/executor.h"

namespace tandem::engine {

using protocol::SequenceId;

void Executor::check(DeviceJob& job, IntegrityReport& report, protocol::StepOutcome& outcome) {
  step_pages_.clear();
  faults_.clear();
  size_t at = 0;
  for (const auto& sequence : job.plan.sequences) {
    const size_t count = std::min(sequence.pages.size(), job.expected.size() - at);
    step_pages_.push_back(
        {sequence.pages, std::span(job.expected).subspan(at, count), sequence.first_position});
    at += count;
  }
  tracker_.check(step_pages_, faults_);
  if (!job.digest_checks.empty()) compare_digests(job);

  // The passes that were planned before a refusal was known are refused too.
  const auto refused_before = [&](SequenceId id) {
    return std::ranges::any_of(
        refused_, [&](const auto& pass) { return std::ranges::find(pass, id) != pass.end(); });
  };
  auto& refused = outcome.refused;
  for (size_t i = 0; i < job.plan.sequences.size(); ++i) {
    const SequenceId id = job.plan.sequences[i].sequence;
    const auto fault = std::ranges::find(faults_, i, &kv::TagFault::sequence);
    const bool before = refused_before(id);
    if (fault != faults_.end() && !before) report.faults.push_back({id, *fault});
    if (fault != faults_.end() || before) refused.push_back(id);
  }
  refused_.push_front(refused);
  if (refused_.size() > max_in_flight_) refused_.pop_back();
  if (refused.empty()) return;

  const auto is_refused = [&](SequenceId id) {
    return std::ranges::find(refused, id) != refused.end();
  };
  auto& sequences = job.plan.sequences;
  size_t kept = 0;
  size_t from = 0;
  size_t to = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const size_t pages = step_pages_[i].expected.size();
    if (!is_refused(sequences[i].sequence)) {
      std::copy_n(job.expected.begin() + static_cast<std::ptrdiff_t>(from), pages,
                  job.expected.begin() + static_cast<std::ptrdiff_t>(to));
      to += pages;
      if (kept != i) {
        sequences[kept] = std::move(sequences[i]);
        job.states[kept] = std::move(job.states[i]);
      }
      ++kept;
    }
    from += pages;
  }
  sequences.resize(kept);
  job.states.resize(kept);
  job.expected.resize(to);
  std::erase_if(job.layer_done, [&](const auto& done) { return is_refused(done.sequence); });
}

void Executor::compare_digests(const DeviceJob& job) {
  const auto groups = static_cast<size_t>(pages_.layout.groups);
  for (const auto& wanted : job.digest_checks) {
    if (std::ranges::find(faults_, wanted.sequence, &kv::TagFault::sequence) != faults_.end())
      continue;
    const auto place = static_cast<size_t>(wanted.place);
    const int32_t page = step_pages_[wanted.sequence].planned[place];
    const auto found =
        kv::page_digests(digest_shape_, pages_.page(page), static_cast<int32_t>(place % groups),
                         static_cast<int64_t>(place / groups));
    if (found == wanted.digests) continue;
    faults_.push_back({.sequence = wanted.sequence,
                       .kind = kv::TagMismatch::kDigest,
                       .place = wanted.place,
                       .planned = page,
                       .expected = step_pages_[wanted.sequence].expected[place],
                       .found = tracker_.label(page)});
  }
}

// Blocks whose last token this pass computed. Their bytes are final until a roll-back, which
// brings them here again.
void Executor::digest_completed(const DeviceJob& job, IntegrityReport& report) const {
  const auto groups = static_cast<size_t>(pages_.layout.groups);
  const int32_t block_tokens = pages_.layout.block_tokens;
  size_t offset = 0;
  for (const auto& sequence : job.plan.sequences) {
    const auto rows = static_cast<int32_t>(sequence.tokens.size());
    const auto end = static_cast<size_t>((sequence.first_position + rows) / block_tokens);
    for (auto block = static_cast<size_t>(sequence.first_position / block_tokens); block < end;
         ++block) {
      for (size_t group = 0; group < groups; ++group) {
        const size_t place = block * groups + group;
        const int32_t page = sequence.pages[place];
        if (page < 0) continue;
        report.fresh.push_back(
            {{page, job.expected[offset + place].generation},
             kv::page_digests(digest_shape_, pages_.page(page), static_cast<int32_t>(group),
                              static_cast<int64_t>(block))});
      }
    }
    offset += sequence.pages.size();
  }
}

}  // namespace tandem::engine
