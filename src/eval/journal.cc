#include "eval/journal.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "eval/items.h"

namespace tandem::eval {
namespace {

tl::unexpected<Error> bad(const std::string& path, size_t line, std::string what) {
  return item_error(path, line, Error{400, "invalid_journal", std::move(what)});
}

tl::unexpected<Error> system_error(const std::string& path, const char* what) {
  return make_error(400, "invalid_journal", path + " " + what + ": " + std::strerror(errno) + ".");
}

// The first key whose values differ, for the error.
std::string difference(const JsonValue& ours, const JsonValue& theirs) {
  for (const auto& [key, value] : ours.members()) {
    const JsonValue* other = theirs.find(key);
    if (other == nullptr || !(*other == value)) {
      return key + " is " + value.dump() + " here and " +
             (other == nullptr ? "absent" : other->dump()) + " there";
    }
  }
  return "it has other settings";
}

}  // namespace

Result<Journal> Journal::open(const std::string& path, const JsonValue& run) {
  if (path.empty()) return Journal(path, -1);
  Journal journal(path, ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (journal.descriptor_ < 0) return system_error(path, "cannot be opened");
  if (::flock(journal.descriptor_, LOCK_EX | LOCK_NB) != 0)
    return make_error(400, "invalid_journal", path + " is in use by another run.");
  TANDEM_TRY(text, read_file(path));
  TANDEM_TRY(whole, journal.load(text, run));
  if (::ftruncate(journal.descriptor_, static_cast<off_t>(whole)) != 0 ||
      ::lseek(journal.descriptor_, 0, SEEK_END) < 0) {
    return system_error(path, "cannot be written");
  }
  if (whole == 0) {
    JsonValue head = JsonValue::object();
    head.set("run", run);
    TANDEM_CHECK(journal.write_line(head));
  }
  return journal;
}

Result<size_t> Journal::load(std::string_view text, const JsonValue& run) {
  size_t at = 0;
  for (size_t line = 1; at < text.size(); ++line) {
    const size_t end = text.find('\n', at);
    if (end == std::string_view::npos) return at;  // torn
    const auto json = parse_json(text.substr(at, end - at));
    if (!json) {
      if (end + 1 == text.size() && line > 1) return at;  // torn, and the newline was there
      return bad(path_, line, json.error().message);
    }
    if (line == 1) {
      const JsonValue* theirs = json->find("run");
      if (theirs == nullptr) return bad(path_, line, "This is not a file of finished items.");
      if (!(*theirs == run)) {
        return bad(path_, line,
                   "The file belongs to another run (" + difference(run, *theirs) +
                       "); give another file or remove it.");
      }
    } else {
      const JsonValue* item = json->find("item");
      const JsonValue* result = json->find("result");
      const auto index = item == nullptr ? std::optional<int64_t>() : item->as_integer();
      if (!index || *index < 0 || result == nullptr || !result->is_object())
        return bad(path_, line, "This is not a finished item.");
      results_.emplace(static_cast<size_t>(*index), *result);
    }
    at = end + 1;
  }
  return at;
}

Journal::Journal(Journal&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      results_(std::move(other.results_)) {}

Journal::~Journal() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

const JsonValue* Journal::find(size_t item) const {
  const std::lock_guard lock(mutex_);
  const auto at = results_.find(item);
  return at == results_.end() ? nullptr : &at->second;
}

size_t Journal::size() const {
  const std::lock_guard lock(mutex_);
  return results_.size();
}

Status Journal::append(size_t item, JsonValue result) {
  const std::lock_guard lock(mutex_);
  if (descriptor_ >= 0) {
    JsonValue line = JsonValue::object();
    line.set("item", JsonValue::integer(static_cast<int64_t>(item)));
    line.set("result", result);
    TANDEM_CHECK(write_line(line));
  }
  results_.emplace(item, std::move(result));
  return {};
}

Status Journal::write_line(const JsonValue& json) {
  const std::string line = json.dump() + "\n";
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(descriptor_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return system_error(path_, "cannot be written");
    written += static_cast<size_t>(count);
  }
  return {};
}

}  // namespace tandem::eval
