// Journal: the finished items of a run in an append-only file of JSON lines, so that a run that was
// ended goes on where it was.
//
//   {"run": {...}}                  what the results depend on; another run's file is refused
//   {"item": 7, "result": {...}}    one for each finished item, in the order in which they ended
//
// Each line is written with one call and handed to the system at once. A last line that was torn
// (by a kill, a full disk) is cut off when the file is opened again. One process at a time.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::eval {

class Journal {
 public:
  // Without a path results live in memory only. Errors (400 "invalid_journal") name file and line.
  static Result<Journal> open(const std::string& path, const JsonValue& run);
  ~Journal();
  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&&) = delete;

  // nullptr until the item is finished. The pointer stays good.
  const JsonValue* find(size_t item) const;
  size_t size() const;
  // Any thread.
  Status append(size_t item, JsonValue result);

 private:
  Journal(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Result<size_t> load(std::string_view text, const JsonValue& run);  // bytes that are whole lines
  Status write_line(const JsonValue& json);

  std::string path_;
  int descriptor_;            // -1: none
  mutable std::mutex mutex_;  // results_, writes
  std::map<size_t, JsonValue> results_;
};

}  // namespace tandem::eval
