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
  out.reserve(words.size() + 1);
  for (auto& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

// Takes what a starting child has written; true once its line is whole or nothing more will come.
bool read_answer(int descriptor, std::string& line) {
  pollfd waiting{descriptor, POLLIN, 0};
  while (poll(&waiting, 1, 0) > 0) {
    char buffer[512];
    const ssize_t count = read(descriptor, buffer, sizeof buffer);
    if (count <= 0) return true;
    line.append(buffer, static_cast<size_t>(count));
    if (line.back() == '\n') return true;
  }
  return false;
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
  ready.memory.tokens = number("kv_tokens");
  if (const JsonValue* dtype = json->find("kv_dtype"); dtype != nullptr && dtype->is_string()) {
    ready.memory.kv_dtype = ops::parse_kv_dtype(dtype->as_string()).value_or(ready.memory.kv_dtype);
  }
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

Result<std::vector<ChildReady>> Supervisor::start(Duration limit) {
  // One after the other would take a model's load time each; the waits overlap. A child dies with
  // the thread that started it (parent-death signal), so all are spawned here and only their
  // answers are awaited.
  std::vector<Starting> starting(specs_.size());
  std::vector<ChildReady> ready(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    TANDEM_TRY(descriptor, spawn(i, 0));
    starting[i].reset(descriptor);
  }
  const TimePoint until = std::chrono::steady_clock::now() + limit;
  while (std::ranges::any_of(starting, &Starting::pending)) {
    if (stopping_) return make_error(503, "interrupted", "interrupted");
    if (std::chrono::steady_clock::now() >= until)
      return make_error(504, "worker_failed", "The workers were not ready in time.");
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (!starting[i].pending() || !read_answer(starting[i].descriptor, starting[i].line))
        continue;
      starting[i].reset();
      TANDEM_TRY(child, parse_ready(starting[i].line, specs_[i].name));
      ready[i] = std::move(child);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (const ChildReady& child : ready) ports_.push_back(child.port);
  return ready;
}

void Supervisor::watch(OnRestart on_restart) {
  on_restart_ = std::move(on_restart);
  thread_ = std::thread([this] { watch_loop(); });
}

// Nothing in here waits for one child: the others may die meanwhile, and stop() must come through.
void Supervisor::watch_loop() {
  std::vector<Watched> children(specs_.size());
  while (!stopping_) {
    for (size_t i = 0; i < specs_.size() && !stopping_; ++i) {
      if (pids_[i] == 0) {
        start_again(i, children[i]);
      } else {
        look_after(i, children[i]);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void Supervisor::start_again(size_t index, Watched& child) {
  const auto now = std::chrono::steady_clock::now();
  if (now < child.next_try) return;
  auto answer = spawn(index, ports_[index]);
  if (!answer) {
    observe::log_error("{}", answer.error().message);
    child.next_try = now + std::chrono::seconds(1);
    return;
  }
  child.started = now;
  child.starting.line.clear();
  child.starting.reset(*answer);
}

void Supervisor::look_after(size_t index, Watched& child) {
  const auto now = std::chrono::steady_clock::now();
  const std::string& name = specs_[index].name;
  int status = 0;
  if (waitpid(pids_[index], &status, WNOHANG) == pids_[index]) {
    pids_[index] = 0;
    // It may have found its port taken: the next one asks the system for another (as below, where
    // its silence is noticed before its end).
    if (child.starting.pending()) ports_[index] = 0;
    child.starting.reset();
    if (now - child.started > std::chrono::seconds(30)) child.failures = 0;
    child.next_try = now + std::chrono::milliseconds(100) * (1 << std::min(child.failures++, 6));
    const std::string how = WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                                : "status " + std::to_string(WEXITSTATUS(status));
    observe::log_warning("{} ended ({}): starting it again", name, how);
    return;
  }
  if (!child.starting.pending()) return;
  if (read_answer(child.starting.descriptor, child.starting.line)) {
    child.starting.reset();
    const auto ready = parse_ready(child.starting.line, name);
    if (!ready) {
      observe::log_error("{}", ready.error().message);  // it has ended or is about to
      ports_[index] = 0;
      return;
    }
    observe::log_info("{} is back", name);
    ports_[index] = ready->port;
    if (on_restart_) on_restart_(index, ready->port);
  } else if (now - child.started > kStartLimit) {
    observe::log_error("{} was not ready in time", name);
    kill(pids_[index], SIGKILL);
    child.starting.reset();
  }
}

void Supervisor::Starting::reset(int next) {
  if (descriptor >= 0) close(descriptor);
  descriptor = next;
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
