// A pass takes no memory once one of as many sequences and pieces has been: what it works on was
// counted and taken when the model was loaded.
#include <numeric>

#include "base/counting_new.inl.h"
#include "model/model_test_support.h"

namespace tandem::model {
namespace {

constexpr int32_t kSequences = 12;
constexpr int32_t kBlockTokens = 16;
constexpr int32_t kBlocks = 40;

// Pages for some sequences, whose first `shared` blocks are the same ones.
struct Pages {
  Pages(const Model& model, int32_t shared) {
    view.layout = model.page_layout(kBlockTokens);
    view.stride = (view.layout.page_bytes() + 63) / 64 * 64;
    const int32_t groups = view.layout.groups;
    for (int32_t s = 0; s < kSequences; ++s) {
      std::vector<int32_t>& table = tables.emplace_back(kBlocks * groups);
      for (int32_t i = 0; i < kBlocks * groups; ++i)
        table[i] = s > 0 && i < shared * groups ? tables[0][i] : view.page_count++;
    }
    storage.assign(view.stride * view.page_count + 64, std::byte{0});
    void* base = storage.data();
    size_t room = storage.size();
    view.base = static_cast<std::byte*>(std::align(64, 1, base, room));
  }
  ops::PageArenaView view;
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::byte> storage;
};

// Allocations of one pass of a row (or of `rows`) of each sequence, at `position`.
int64_t allocations_of_pass(Model& model, const Pages& pages, int32_t position, int32_t rows) {
  std::vector<ops::SequenceRows> sequences;
  sequences.reserve(kSequences);
  for (int32_t s = 0; s < kSequences; ++s) {
    sequences.push_back({.first_row = s * rows,
                         .row_count = rows,
                         .first_position = position,
                         .pages = pages.tables[s]});
  }
  std::vector<int32_t> tokens(static_cast<size_t>(kSequences) * rows, 3);
  std::vector<int32_t> wanted(kSequences);
  for (int32_t s = 0; s < kSequences; ++s) wanted[s] = (s + 1) * rows - 1;
  std::vector<float> logits(static_cast<size_t>(kSequences) * model.config().vocab);
  const ops::ForwardBatch batch = {
      .tokens = tokens, .sequences = sequences, .logit_rows = wanted, .layer_done = {}};
  const int64_t before = allocations;
  const Status done = model.forward(batch, pages.view, logits);
  const int64_t found = allocations - before;
  EXPECT_TRUE(done) << done.error().message;
  return found;
}

TEST(Allocations, PassesTakeNoMemory) {
  for (const TinyLlama& spec : golden_tiny_llamas()) {
    for (const int threads : {1, 2}) {
      const auto model = load_tiny(
          spec, {.numerics = Numerics::kFast, .threads = threads, .max_rows = 256, .isa = ""});
      for (const int32_t shared : {0, 32}) {
        const Pages pages(*model, shared);
        // The first pass of so many sequences may still grow the lists of pieces of work.
        allocations_of_pass(*model, pages, 600, 1);
        for (const int32_t position : {600, 601, 5, 630}) {
          EXPECT_EQ(allocations_of_pass(*model, pages, position, 1), 0)
              << spec.name << " threads " << threads << " at " << position;
        }
        if (shared > 0) continue;
        allocations_of_pass(*model, pages, 0, 16);
        EXPECT_EQ(allocations_of_pass(*model, pages, 16, 16), 0) << spec.name;
      }
    }
  }
}

// What it may write partial results to is part of what the worker is told it takes.
TEST(Allocations, AttentionsPartialResultsAreCounted) {
  const TinyLlama spec = golden_tiny_llamas()[0];
  const auto small = load_tiny(spec, {.max_rows = 64, .served_context = 256, .isa = ""});
  const auto large = load_tiny(spec, {.max_rows = 64, .served_context = 2560, .isa = ""});
  const auto& c = small->config();
  const size_t spans = 9;  // that one context has more than the other
  EXPECT_GE(large->memory().activations - small->memory().activations,
            spans * 64 * c.heads * c.head_dim * sizeof(float));
}

}  // namespace
}  // namespace tandem::model
