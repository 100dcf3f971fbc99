#include "cli/supervisor.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json_value.h"
#include "observe/log.h"

extern char** environ;

namespace tandem::cli {
namespace {

constexpr int kReadyDescriptor = 3;

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (auto& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

// Reads one line, or what came before the end of file.
std::string read_line(int descriptor, TimePoint until) {
  std::string line;
  while (line.empty() || line.back() != '\n') {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                          until - std::chrono::steady_clock::now())
                          .count();
    pollfd waiting{descriptor, POLLIN, 0};
    if (left <= 0 || poll(&waiting, 1, static_cast<int>(std::min<long>(left, 1000))) < 0) break;
    if (waiting.revents == 0) continue;
    char buffer[512];
    const ssize_t count = read(descriptor, buffer, sizeof buffer);
    if (count <= 0) break;
    line.append(buffer, static_cast<size_t>(count));
  }
  return line;
}

Result<ChildReady> parse_ready(const std::string& line, const std::string& name) {
  const auto json = parse_json(line);
  if (!json)
    return make_error(500, "worker_failed",
                      "The worker " + name + " did not start; its log is above.");
  const auto number = [&](const char* key) -> int64_t {
    const JsonValue* value = json->find(key);
    return value == nullptr ? 0 : value->as_integer().value_or(0);
  };
  ChildReady ready;
  ready.port = static_cast<uint16_t>(number("port"));
  ready.context_length = static_cast<int32_t>(number("context_length"));
  ready.memory.weights = static_cast<size_t>(number("weights"));
  ready.memory.activations = static_cast<size_t>(number("activations"));
  ready.memory.kv = static_cast<size_t>(number("kv"));
  ready.memory.kv_tokens = number("kv_tokens");
  if (const JsonValue* model = json->find("model")) ready.model = model->as_string();
  return ready;
}

}  // namespace

Supervisor::~Supervisor() { stop(std::chrono::seconds(5)); }

Result<int> Supervisor::spawn(size_t index, uint16_t port) {
  const ChildSpec& spec = specs_[index];
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC) != 0)
    return internal_error(std::string("pipe: ") + std::strerror(errno));
  std::vector<std::string> words = {"tandem"};
  words.insert(words.end(), spec.words.begin(), spec.words.end());
  words.insert(words.end(), {"--port", std::to_string(port)});
  std::vector<std::string> environment = spec.environment;
  environment.push_back("TANDEM_READY_FD=" + std::to_string(kReadyDescriptor));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto name = text.substr(0, text.find('=') + 1);
    if (std::ranges::none_of(environment,
                             [&](const std::string& own) { return own.starts_with(name); }))
      environment.emplace_back(text);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // dup2 onto itself would keep the close-on-exec flag.
  if (pipes[1] == kReadyDescriptor) fcntl(pipes[1], F_SETFD, 0);
  posix_spawn_file_actions_adddup2(&actions, pipes[1], kReadyDescriptor);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  // A group of its own: Ctrl-C reaches only the supervisor, which drains the router before the
  // workers end.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const auto word_pointers = pointers(words);
  const auto environment_pointers = pointers(environment);
  const int failed = posix_spawn(&pid, "/proc/self/exe", &actions, &attributes,
                                 word_pointers.data(), environment_pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(pipes[1]);
  if (failed != 0) {
    close(pipes[0]);
    return internal_error("The worker " + spec.name +
                          " cannot be started: " + std::strerror(failed));
  }
  pids_[index] = pid;
  return pipes[0];
}

Result<ChildReady> Supervisor::await_ready(size_t index, int descriptor, Duration limit) {
  const std::string line = read_line(descriptor, std::chrono::steady_clock::now() + limit);
  close(descriptor);
  return parse_ready(line, specs_[index].name);
}

Result<std::vector<ChildReady>> Supervisor::start(Duration limit) {
  // One after the other would take a model's load time each; the waits overlap. A child dies with
  // the thread that started it (parent-death signal), so all are spawned here and only their
  // answers are awaited.
  std::vector<int> answers;
  for (size_t i = 0; i < specs_.size(); ++i) {
    TANDEM_TRY(descriptor, spawn(i, 0));
    answers.push_back(descriptor);
  }
  std::vector<ChildReady> ready;
  std::optional<Error> failed;
  for (size_t i = 0; i < answers.size(); ++i) {
    auto child = await_ready(i, answers[i], limit);
    if (!child) {
      failed = failed ? failed : child.error();
      continue;
    }
    ports_.push_back(child->port);
    ready.push_back(std::move(*child));
  }
  if (failed) return tl::unexpected(*failed);
  return ready;
}

void Supervisor::watch(OnRestart on_restart) {
  on_restart_ = std::move(on_restart);
  thread_ = std::thread([this] { watch_loop(); });
}

void Supervisor::watch_loop() {
  std::vector<int> failures(specs_.size(), 0);
  std::vector<TimePoint> next_try(specs_.size(), TimePoint::min());
  std::vector<TimePoint> started(specs_.size(), std::chrono::steady_clock::now());
  while (!stopping_) {
    for (size_t i = 0; i < specs_.size() && !stopping_; ++i) {
      const auto now = std::chrono::steady_clock::now();
      if (const pid_t pid = pids_[i]; pid > 0) {
        int status = 0;
        if (waitpid(pid, &status, WNOHANG) != pid) continue;
        pids_[i] = 0;
        if (stopping_) break;
        if (now - started[i] > std::chrono::seconds(30)) failures[i] = 0;
        const auto pause = std::chrono::milliseconds(100) * (1 << std::min(failures[i]++, 6));
        next_try[i] = now + pause;
        const std::string how = WIFSIGNALED(status)
                                    ? "signal " + std::to_string(WTERMSIG(status))
                                    : "status " + std::to_string(WEXITSTATUS(status));
        observe::log_warning("{} ended ({}): starting it again", specs_[i].name, how);
      } else if (now >= next_try[i]) {
        started[i] = now;
        auto answer = spawn(i, ports_[i]);
        auto ready = answer ? await_ready(i, *answer, std::chrono::minutes(5))
                            : tl::unexpected(answer.error());
        if (!ready) {
          observe::log_error("{}", ready.error().message);
          continue;  // it has ended or will be found so
        }
        observe::log_info("{} is back", specs_[i].name);
        if (on_restart_) on_restart_(i, ready->port);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void Supervisor::stop(Duration limit) {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  for (const auto& pid : pids_) {
    if (pid > 0) kill(pid, SIGTERM);
  }
  const TimePoint until = std::chrono::steady_clock::now() + limit;
  for (auto& pid : pids_) {
    while (pid > 0) {
      if (waitpid(pid, nullptr, WNOHANG) != 0) {
        pid = 0;
      } else if (std::chrono::steady_clock::now() >= until) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        pid = 0;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }
}

}  // namespace tandem::cli
