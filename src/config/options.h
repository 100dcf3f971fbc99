// Options: one declaration of every option of a command. The flag, the TOML key, the default and
// the help come from it.
//
//   Options options("worker", "Runs one worker.");
//   options.positional(model, "MODEL", "path of a GGUF");
//   options.value(port, "port", "PORT", "port to listen on; 0: the system picks");
//   TANDEM_TRY(parsed, options.parse(arguments));   // parsed.help is set when --help was asked
//
// Order of precedence: defaults, then the file of `--config FILE` (keys named like the flags, at
// the top level or in a table named like the command), then the flags. Unknown keys and flags are
// errors that name them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace tandem::config {

// "512M", "1.5GiB", "4096": units of 1024, B optional.
Result<size_t> parse_size(std::string_view text);
// "250ms", "30s", "5m", "2h"; a plain number is seconds.
Result<Duration> parse_duration(std::string_view text);

struct Bytes {
  size_t value = 0;
};

class Options {
 public:
  Options(std::string command, std::string summary);

  // Targets hold the defaults and outlive this object.
  void positional(std::string& target, std::string name, std::string help, bool required = true);
  void value(std::string& target, std::string name, std::string metavar, std::string help);
  void value(int32_t& target, std::string name, std::string metavar, std::string help,
             int32_t least, int32_t most);
  void value(uint16_t& target, std::string name, std::string metavar, std::string help);
  void value(Bytes& target, std::string name, std::string metavar, std::string help);
  void value(Duration& target, std::string name, std::string metavar, std::string help);
  void list(std::vector<std::string>& target, std::string name, std::string metavar,
            std::string help);
  void flag(bool& target, std::string name, std::string help);
  // One of `words`.
  void choice(std::string& target, std::string name, std::vector<std::string> words,
              std::string help);
  // Only in the file: an array of tables, [[name]]. `add` gets each one's keys and values, as text.
  using Table = std::vector<std::pair<std::string, std::string>>;
  void tables(std::string name, std::function<Status(const Table&)> add);
  void hide(std::string_view name);  // not in the help: for tests
  void example(std::string line);    // shown at the end of the help

  struct Parsed {
    std::optional<std::string> help;  // print it and stop
  };
  Result<Parsed> parse(const std::vector<std::string>& arguments);

 private:
  enum class Kind : uint8_t { kPositional, kValue, kList, kFlag };
  struct Spec {
    Kind kind;
    std::string name;
    std::string metavar;
    std::string help;
    std::string fallback;  // the default, as text
    bool required = false;
    std::function<Status(const std::vector<std::string>&)> set;
    bool hidden = false;
  };
  friend class CommandLine;
  void add(Spec spec) { specs_.push_back(std::move(spec)); }
  const Spec* find(std::string_view name) const;
  Status read_file(const std::string& path);

  std::string command_;
  std::string summary_;
  std::vector<std::string> examples_;
  std::vector<Spec> specs_;
  std::vector<std::pair<std::string, std::function<Status(const Table&)>>> tables_;
};

}  // namespace tandem::config
