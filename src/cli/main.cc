#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>

#include <sys/prctl.h>

#include "cli/commands.h"

namespace tandem::cli {
namespace {

constexpr const char* kVersion = "0.1.0";

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(const Arguments&);
};

constexpr Command kCommands[] = {
    {"up", "serves a model on this machine: router, prefill and decode workers", run_up},
    {"pull", "brings a model from a Hugging Face hub", run_pull},
    {"chat", "talks to a server in the terminal", run_chat},
    {"worker", "runs one prefill, decode or unified worker", run_worker},
    {"router", "runs the router in front of workers", run_router},
    {"inspect", "shows what is in a model file", run_inspect},
    {"kv", "looks into a worker's KV memory: statistics, blocks, verification", run_kv},
    {"eval", "measures how good a model is: perplexity, divergence, data sets", run_eval},
    {"parse", "reads recorded replies of models: text, reasoning, calls of tools", run_parse},
    {"bench", "puts load on a server and measures latencies, throughput and goodput", run_bench},
    {"mock", "runs engines that only pretend, for testing routers", run_mock},
    {"simulate", "the KV plane under crashes and partitions; the router's policies under a trace",
     run_simulate},
};

void print_help(std::FILE* out) {
  std::fputs(
      "tandem serves large language models: router, prefill and decode workers, and the KV plane "
      "between them.\n\n"
      "Usage: tandem COMMAND [OPTIONS]\n\nCommands:\n",
      out);
  for (const Command& command : kCommands) {
    std::fprintf(out, "  %-9.*s  %.*s\n", static_cast<int>(command.name.size()),
                 command.name.data(), static_cast<int>(command.summary.size()),
                 command.summary.data());
  }
  std::fputs("\n`tandem COMMAND --help` shows a command's options.\n", out);
}

int run(int argc, char** argv) {
  prctl(PR_SET_NAME, "tandem");  // workers are started through /proc/self/exe
  // A client that leaves must not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--version" || name == "version") {
    std::printf("tandem %s\n", kVersion);
    return 0;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    print_help(stdout);
    return 0;
  }
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(Arguments(argv + 2, argv + argc));
  }
  if (!name.empty()) std::fprintf(stderr, "tandem: there is no command \"%s\"\n\n", argv[1]);
  print_help(stderr);
  return 2;
}

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) {
  try {
    return tandem::cli::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tandem: %s\n", error.what());
    return 1;
  }
}
