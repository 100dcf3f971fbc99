// The command line through CLI11. Every option collects its raw words there; the declarations turn
// them into values, so that a flag and a TOML key are checked by the same code.
#include <deque>

#include <CLI/CLI.hpp>

#include "config/options.h"

namespace tandem::config {

Result<Options::Parsed> Options::parse(const std::vector<std::string>& arguments) {
  CLI::App app(summary_, "tandem " + command_);
  app.set_help_flag("-h,--help", "shows this help");
  std::string config_file;
  app.add_option("--config", config_file, "TOML file with the same names as these options")
      ->type_name("FILE");
  std::deque<std::vector<std::string>> words(specs_.size());
  std::deque<bool> flags(specs_.size(), false);
  std::vector<CLI::Option*> options;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const Spec& spec = specs_[i];
    CLI::Option* option = nullptr;
    switch (spec.kind) {
      case Kind::kPositional:
        option = app.add_option(spec.name, words[i], spec.help)->expected(1)->type_name("");
        break;
      case Kind::kFlag:
        option = app.add_flag("--" + spec.name, flags[i], spec.help);
        break;
      case Kind::kList:
        option = app.add_option("--" + spec.name, words[i], spec.help)
                     ->type_name(spec.metavar + " ...")
                     ->expected(1, 1024);
        break;
      case Kind::kValue:
        option = app.add_option("--" + spec.name, words[i], spec.help)
                     ->expected(1)
                     ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
                     ->type_name(spec.metavar +
                                 (spec.fallback.empty() ? "" : " [" + spec.fallback + "]"));
        break;
    }
    if (spec.hidden) option->group("");
    options.push_back(option);
  }
  if (!examples_.empty()) {
    std::string footer = "Examples:";
    for (const auto& line : examples_) footer += "\n  " + line;
    app.footer(footer);
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // what CLI11 wants
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return Parsed{app.help()};
  } catch (const CLI::ParseError& error) {
    return make_error(400, "invalid_option",
                      std::string(error.what()) + " (see tandem " + command_ + " --help)");
  }
  if (!config_file.empty()) TANDEM_CHECK(read_file(config_file));
  for (size_t i = 0; i < specs_.size(); ++i) {
    const Spec& spec = specs_[i];
    if (options[i]->count() == 0) continue;
    const std::vector<std::string> values =
        spec.kind == Kind::kFlag ? std::vector<std::string>{flags[i] ? "true" : "false"} : words[i];
    if (auto set = spec.set(values); !set) {
      const std::string name = spec.kind == Kind::kPositional ? spec.name : "--" + spec.name;
      return make_error(400, "invalid_option", name + ": " + set.error().message);
    }
  }
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (!specs_[i].required || options[i]->count() > 0) continue;
    if (find(specs_[i].name)->fallback.empty() && config_file.empty()) {
      return make_error(400, "invalid_option",
                        specs_[i].name + " is missing (see tandem " + command_ + " --help)");
    }
  }
  return Parsed{};
}

}  // namespace tandem::config
