// `tandem pull`: a model from a Hugging Face hub into the models directory.
#include "hub/pull.h"

#include <cstdio>

#include <unistd.h>

#include "base/bytes.h"
#include "base/environment.h"
#include "cli/commands.h"
#include "config/options.h"

namespace tandem::cli {
namespace {

// On a terminal one line that moves; elsewhere a line at each tenth.
class PrintedProgress final : public hub::PullProgress {
 public:
  void begin(size_t files, uint64_t bytes) override {
    if (files > 0) std::printf("%zu files, %s\n", files, format_bytes(bytes).c_str());
  }
  void waiting() override {
    std::printf("another process pulls this model: waiting for it\n");
    std::fflush(stdout);
  }
  void present(const hub::RemoteFile& file) override {
    std::printf("%s is there\n", file.path.c_str());
  }
  void moved(const hub::RemoteFile& file, uint64_t done) override {
    const TimePoint now = std::chrono::steady_clock::now();
    if (file.path != path_) {
      path_ = file.path;
      begun_ = shown_ = now;
      first_ = done;
      tenth_ = 0;
    }
    const double part =
        file.size == 0 ? 1 : static_cast<double>(done) / static_cast<double>(file.size);
    if (terminal_) {
      if (now - shown_ < std::chrono::milliseconds(100) && done < file.size) return;
      shown_ = now;
      std::printf("\r%s\033[K", line(file, done, part, to_seconds(now - begun_)).c_str());
    } else {
      const int tenth = static_cast<int>(part * 10);
      if (tenth <= tenth_) return;
      tenth_ = tenth;
      std::printf("%s\n", line(file, done, part, to_seconds(now - begun_)).c_str());
    }
    std::fflush(stdout);
  }
  void trouble(const hub::RemoteFile& file, const Error& error) override {
    std::fprintf(stderr, "%s%s: %s; trying again\n", terminal_ ? "\n" : "", file.path.c_str(),
                 error.message.c_str());
  }
  void finished(const hub::RemoteFile& file) override {
    std::printf("%s%s is complete, its checksum is right\n", terminal_ ? "\r\033[K" : "",
                file.path.c_str());
    std::fflush(stdout);
  }

 private:
  std::string line(const hub::RemoteFile& file, uint64_t done, double part, double seconds) const {
    const double rate =
        seconds > 0 ? static_cast<double>(done - std::min(done, first_)) / seconds : 0;
    char numbers[160];
    std::snprintf(numbers, sizeof numbers, "  %3.0f %%  %s of %s  %s/s", part * 100,
                  format_bytes(done).c_str(), format_bytes(file.size).c_str(),
                  format_bytes(static_cast<size_t>(rate)).c_str());
    std::string text = file.path + numbers;
    if (rate > 0 && done < file.size) {
      const auto left = static_cast<long>(static_cast<double>(file.size - done) / rate);
      std::snprintf(numbers, sizeof numbers, "  %ld:%02ld left", left / 60, left % 60);
      text += numbers;
    }
    return text;
  }

  bool terminal_ = isatty(STDOUT_FILENO) == 1;
  std::string path_;
  TimePoint begun_;
  TimePoint shown_;
  uint64_t first_ = 0;
  int tenth_ = 0;
};

}  // namespace

int run_pull(const Arguments& arguments) {
  config::Options options(
      "pull",
      "Brings a model from a Hugging Face hub into the models directory; `tandem up --model "
      "ORG/NAME` then serves it. A pull that was stopped goes on where it stopped.");
  std::string name_text;
  hub::PullOptions wanted;
  wanted.models_directory = hub::default_models_directory();
  wanted.hub.token = environment("HF_TOKEN");
  if (std::string endpoint = environment("HF_ENDPOINT"); !endpoint.empty())
    wanted.hub.endpoint = std::move(endpoint);
  options.positional(name_text, "MODEL",
                     "ORG/NAME, or ORG/NAME:FILE with a file's name or a mark such as Q4_K_M");
  options.value(wanted.hub.revision, "revision", "REV", "branch, tag or commit");
  options.value(wanted.models_directory, "models-dir", "DIR",
                "where models are kept; also TANDEM_MODELS in the environment");
  options.value(wanted.hub.endpoint, "endpoint", "URL", "the hub; also HF_ENDPOINT");
  options.example("tandem pull ORG/NAME:Q4_K_M");
  options.example("HF_TOKEN=... tandem pull ORG/NAME     # a gated or private model");
  options.example("SSL_CERT_FILE=ca.pem HF_ENDPOINT=https://hub.example.org tandem pull ORG/NAME");
  auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  while (wanted.hub.endpoint.ends_with('/')) wanted.hub.endpoint.pop_back();
  const auto name = hub::parse_model_name(name_text);
  if (!name) {
    return report(
        Error{400, "invalid_option", "\"" + name_text + "\" is not ORG/NAME or ORG/NAME:FILE."});
  }
  PrintedProgress progress;
  const auto pulled = hub::pull(*name, wanted, progress);
  if (!pulled) return report(pulled.error());
  std::printf("%s\nserve it with: tandem up --model %s\n", pulled->path.c_str(), name_text.c_str());
  return 0;
}

}  // namespace tandem::cli
