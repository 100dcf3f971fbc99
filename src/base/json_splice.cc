#include "base/json_splice.h"

#include <algorithm>
#include <cassert>

namespace tandem {

namespace {

void append_member(std::string& out, std::string_view key, std::string_view value) {
  append_json_string(out, key);
  out += ':';
  out += value;
}

Result<JsonScan> scan_object(std::string_view text) {
  TANDEM_TRY(scan, scan_json(text, {.max_members = SIZE_MAX}));
  if (scan.is_array()) return make_error(400, "invalid_json", "The JSON body must be an object.");
  return std::move(scan);
}

}  // namespace

BodyPieces splice(const std::shared_ptr<const std::string>& whole,
                  const std::vector<TextEdit>& edits) {
  BodyPieces out;
  out.reserve(2 * edits.size() + 1);
  size_t at = 0;
  for (const TextEdit& edit : edits) {
    assert(edit.begin >= at && edit.end >= edit.begin && edit.end <= whole->size());
    out.append_slice(whole, at, edit.begin);
    out.append_text(edit.text);
    at = edit.end;
  }
  out.append_slice(whole, at, whole->size());
  return out;
}

std::string splice_text(std::string_view whole, const std::vector<TextEdit>& edits) {
  std::string out;
  size_t size = whole.size();
  for (const TextEdit& edit : edits) size += edit.text.size();
  out.reserve(size);
  size_t at = 0;
  for (const TextEdit& edit : edits) {
    assert(edit.begin >= at && edit.end >= edit.begin && edit.end <= whole.size());
    out.append(whole.substr(at, edit.begin - at));
    out.append(edit.text);
    at = edit.end;
  }
  out.append(whole.substr(at));
  return out;
}

const JsonEdit::Change* JsonEdit::change_of(std::string_view key) const {
  for (const Change& change : changes_) {
    if (change.key == key) return &change;
  }
  return nullptr;
}

JsonEdit::Change& JsonEdit::change(std::string_view key) {
  for (Change& change : changes_) {
    if (change.key == key) return change;
  }
  if (changes_.empty()) changes_.reserve(8);
  changes_.push_back({std::string(key), false, {}});
  return changes_.back();
}

void JsonEdit::set(std::string_view key, std::string value) {
  Change& changed = change(key);
  changed.erased = false;
  changed.value = std::move(value);
}

void JsonEdit::erase(std::string_view key) {
  if (has(key)) {
    change(key).erased = true;
  } else {
    std::erase_if(changes_, [&](const Change& changed) { return changed.key == key; });
  }
}

void JsonEdit::add(std::vector<TextEdit> edits) {
  for (TextEdit& edit : edits) inner_.push_back(std::move(edit));
}

std::string JsonEdit::added() const {
  constexpr size_t kMarks = 4;  // quotes, a colon, a comma
  size_t size = 0;
  for (const Change& change : changes_) size += change.key.size() + change.value.size() + kMarks;
  std::string out;
  out.reserve(size);
  for (const Change& change : changes_) {
    if (change.erased || has(change.key)) continue;
    if (!out.empty()) out += ',';
    append_member(out, change.key, change.value);
  }
  return out;
}

// An erased member takes the comma behind it along, and the white space up to the next member; the
// erased ones at the end take the comma before them.
std::vector<TextEdit> JsonEdit::edits() const {
  const std::vector<JsonMemberSpan>& members = scan_.members();
  const auto gone = [&](const JsonMemberSpan& member) {
    const Change* const change = change_of(member.key);
    return change != nullptr && change->erased;
  };
  size_t kept = members.size();  // one past the last that stays
  while (kept > 0 && gone(members[kept - 1])) --kept;

  std::vector<TextEdit> out;
  out.reserve(members.size() + 1);
  if (std::string fresh = added(); !fresh.empty()) {
    if (kept > 0) fresh += ',';
    out.push_back({offset_ + scan_.begin() + 1, offset_ + scan_.begin() + 1, std::move(fresh)});
  }
  for (size_t i = 0; i < kept; ++i) {
    const JsonMemberSpan& member = members[i];
    const Change* const change = change_of(member.key);
    if (change == nullptr) {
      for (const TextEdit& edit : inner_) {
        if (edit.begin >= offset_ + member.value_begin && edit.end <= offset_ + member.value_end)
          out.push_back(edit);
      }
    } else if (change->erased) {
      out.push_back({offset_ + member.key_begin, offset_ + members[i + 1].key_begin, {}});
    } else {
      out.push_back({offset_ + member.value_begin, offset_ + member.value_end, change->value});
    }
  }
  if (kept < members.size()) {
    const size_t begin = kept > 0 ? members[kept - 1].value_end : members[0].key_begin;
    out.push_back({offset_ + begin, offset_ + members.back().value_end, {}});
  }
  return out;
}

Result<std::string> json_insert_member(std::string_view text, std::string_view key,
                                       std::string_view value) {
  TANDEM_TRY(scan, scan_object(text));
  std::string member;
  append_member(member, key, value);
  if (!scan.members().empty()) member += ',';
  return splice_text(text, {{scan.begin() + 1, scan.begin() + 1, std::move(member)}});
}

Result<std::string> json_erase_member(std::string_view text, std::string_view key) {
  TANDEM_TRY(scan, scan_object(text));
  JsonEdit edit(scan);
  edit.erase(key);
  return splice_text(text, edit.edits());
}

Result<std::string> json_replace_member(std::string_view text, std::string_view key,
                                        std::string_view value) {
  TANDEM_TRY(scan, scan_object(text));
  JsonEdit edit(scan);
  edit.set(key, std::string(value));
  return splice_text(text, edit.edits());
}

}  // namespace tandem
