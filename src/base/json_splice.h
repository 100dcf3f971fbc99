// Byte splices of JSON text: everything outside the edits stays byte for byte (key order, number
// text, unknown fields, white space).
//
//   JsonEdit edit(text, scan);               // scan: json_scan.h
//   edit.set("stream", "false");
//   edit.erase("stream_options");
//   BodyPieces body = splice(shared_text, edit.edits());
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/body_pieces.h"
#include "base/json_scan.h"
#include "base/result.h"

namespace tandem {

// Bytes [begin, end) of a text become `text`.
struct TextEdit {
  size_t begin = 0;
  size_t end = 0;
  std::string text;
};

// The edits must be in order and apart (JsonEdit gives such). The long runs between them are shared
// with `whole`.
BodyPieces splice(const std::shared_ptr<const std::string>& whole,
                  const std::vector<TextEdit>& edits);
std::string splice_text(std::string_view whole, const std::vector<TextEdit>& edits);

// Edits of one object's members. Names are as json_scan gives them, escapes undone; what is set or
// erased is every member of that name. A value is JSON text. New members stand first, in the order
// in which they were set.
class JsonEdit {
 public:
  // `scan` is of a text that holds the object `offset` bytes into the text that is edited; it must
  // outlive this.
  explicit JsonEdit(const JsonScan& scan, size_t offset = 0) : scan_(scan), offset_(offset) {}

  void set(std::string_view key, std::string value);
  void erase(std::string_view key);
  // Edits within a member's value, in the same text: those of another JsonEdit. They give way to
  // set() and erase() of the whole member.
  void add(std::vector<TextEdit> edits);

  bool has(std::string_view key) const { return scan_.find(key) != nullptr; }
  std::vector<TextEdit> edits() const;

 private:
  struct Change {
    std::string key;
    bool erased = false;
    std::string value;
  };
  const Change* change_of(std::string_view key) const;
  Change& change(std::string_view key);
  std::string added() const;

  const JsonScan& scan_;
  size_t offset_;
  std::vector<Change> changes_;
  std::vector<TextEdit> inner_;
};

// The same for one edit of a whole text. Errors: 400 when it is not an object.
// Adds `"key":value` as the first member.
Result<std::string> json_insert_member(std::string_view text, std::string_view key,
                                       std::string_view value);
// Removes every top-level member named `key`, with one comma.
Result<std::string> json_erase_member(std::string_view text, std::string_view key);
// Replaces the value of the top-level member `key`, or inserts it.
Result<std::string> json_replace_member(std::string_view text, std::string_view key,
                                        std::string_view value);

}  // namespace tandem
