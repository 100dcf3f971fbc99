// perplexity: fast mode against exact mode on a file of token ids, in windows of a fixed length.
//
//   bench_perplexity MODEL.gguf TOKENS.i32 [--window N] [--limit TOKENS] [--threads N] [--isa NAME]
//
// TOKENS.i32 holds little-endian int32 ids. Each window starts with an empty context; every
// position but a window's first is scored. Prints the perplexity of both modes, the mean KL
// divergence of fast from exact in nats, and how often both rank the same token first.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "model/registry.h"
#include "model/sequence_runner.h"
#include "numerics/error.h"

namespace {

using tandem::Result;
using tandem::model::Model;
using tandem::model::ModelOptions;
using tandem::model::Numerics;
using tandem::model::SequenceRunner;

struct Arguments {
  std::string model;
  std::string tokens;
  int window = 512;
  int limit = 1 << 30;
  int threads = 1;
  std::string isa;
};

bool parse(int argc, char** argv, Arguments& out) {
  std::vector<std::string> plain;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--window" && has_value) {
      out.window = std::atoi(argv[++i]);
    } else if (word == "--limit" && has_value) {
      out.limit = std::atoi(argv[++i]);
    } else if (word == "--threads" && has_value) {
      out.threads = std::atoi(argv[++i]);
    } else if (word == "--isa" && has_value) {
      out.isa = argv[++i];
    } else {
      plain.push_back(word);
    }
  }
  if (plain.size() != 2 || out.window < 2 || out.limit < 2) return false;
  out.model = plain[0];
  out.tokens = plain[1];
  return true;
}

std::vector<int32_t> read_tokens(const std::string& path, int limit) {
  std::ifstream file(path, std::ios::binary);
  std::vector<int32_t> tokens;
  int32_t token = 0;
  while (static_cast<int>(tokens.size()) < limit &&
         file.read(reinterpret_cast<char*>(&token), sizeof(token))) {
    tokens.push_back(token);
  }
  return tokens;
}

tandem::Status run(const Arguments& arguments) {
  const std::vector<int32_t> tokens = read_tokens(arguments.tokens, arguments.limit);
  if (tokens.size() < 2) return tandem::invalid_request("no tokens in " + arguments.tokens);
  const auto load = [&](Numerics numerics) {
    return tandem::model::load_model(arguments.model, {.numerics = numerics,
                                                       .threads = arguments.threads,
                                                       .max_rows = arguments.window,
                                                       .isa = arguments.isa});
  };
  TANDEM_TRY(exact, load(Numerics::kExact));
  TANDEM_TRY(fast, load(Numerics::kFast));
  TANDEM_TRY(exact_runner, SequenceRunner::create(*exact, 1, arguments.window));
  TANDEM_TRY(fast_runner, SequenceRunner::create(*fast, 1, arguments.window));
  const auto vocab = static_cast<size_t>(exact->config().vocab);
  tandem::numerics::Agreement agreement;
  for (size_t begin = 0; begin + 1 < tokens.size(); begin += arguments.window) {
    const size_t count = std::min(tokens.size() - begin, static_cast<size_t>(arguments.window));
    const std::span<const int32_t> window = std::span(tokens).subspan(begin, count);
    exact_runner.truncate(0, 0);
    fast_runner.truncate(0, 0);
    TANDEM_TRY(exact_logits, exact_runner.append(0, window));
    TANDEM_TRY(fast_logits, fast_runner.append(0, window));
    for (size_t i = 0; i + 1 < count; ++i) {
      agreement.add(std::span(exact_logits).subspan(i * vocab, vocab),
                    std::span(fast_logits).subspan(i * vocab, vocab), window[i + 1]);
    }
    std::fprintf(stderr, "\r%zu of %zu tokens: exact %.4f, fast %.4f", begin + count, tokens.size(),
                 agreement.reference_perplexity(), agreement.actual_perplexity());
  }
  std::fprintf(stderr, "\n");
  std::printf("positions          %zu (window %d)\n", agreement.positions(), arguments.window);
  std::printf("perplexity exact   %.5f  (%s)\n", agreement.reference_perplexity(),
              exact->numeric_path().c_str());
  std::printf("perplexity fast    %.5f  (%s, %+.3f %%)\n", agreement.actual_perplexity(),
              fast->numeric_path().c_str(),
              100 * (agreement.actual_perplexity() / agreement.reference_perplexity() - 1));
  std::printf("mean KL            %.3e nats\n", agreement.mean_kl());
  std::printf("top-1 agreement    %.3f %%\n", 100 * agreement.top1_agreement());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "usage: %s MODEL.gguf TOKENS.i32 [--window N] [--limit TOKENS] [--threads N] "
                 "[--isa NAME]\n",
                 argv[0]);
    return 2;
  }
  const tandem::Status status = run(arguments);
  if (!status) {
    std::fprintf(stderr, "error: %s\n", status.error().message.c_str());
    return 1;
  }
  return 0;
}
