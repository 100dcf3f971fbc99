// The subcommands of `tandem`, one file each. Each takes the words after its name and returns the
// exit status.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::cli {

using Arguments = std::vector<std::string>;

int run_up(const Arguments& arguments);
int run_worker(const Arguments& arguments);
int run_router(const Arguments& arguments);
int run_pull(const Arguments& arguments);
int run_chat(const Arguments& arguments);
int run_inspect(const Arguments& arguments);
int run_kv(const Arguments& arguments);
int run_eval(const Arguments& arguments);
int run_parse(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_mock(const Arguments& arguments);
int run_simulate(const Arguments& arguments);
int simulate_router(const Arguments& arguments);  // a part of run_simulate

// Prints the error for a person on stderr; returns the exit status (2: wrong usage, 1: everything
// else).
int report(const Error& error);

}  // namespace tandem::cli
