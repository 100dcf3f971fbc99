// scan_json accepts exactly the objects and arrays that parse_json accepts, sees the same members,
// every level of the skipping loops agrees, and splices give what they should.
#include <cstdint>
#include <cstdlib>

#include "base/json_skip.h"
#include "base/json_splice.h"

namespace {

using tandem::JsonValue;

void require(bool good) {
  if (!good) std::abort();
}

void check_members(std::string_view text, const tandem::JsonScan& scan, const JsonValue& json) {
  require(scan.is_array() == json.is_array());
  const size_t count = json.is_array() ? json.items().size() : json.members().size();
  require(scan.members().size() == count);
  for (size_t i = 0; i < count; ++i) {
    const tandem::JsonMemberSpan& span = scan.members()[i];
    const JsonValue& value = json.is_array() ? json.items()[i] : json.members()[i].second;
    if (json.is_object()) require(span.key == json.members()[i].first);
    require(span.kind == value.kind());
    // In brackets: parse_json takes no number beyond a double's range for a whole document.
    const auto list = tandem::parse_json("[" + std::string(json_value_of(text, span)) + "]");
    require(list && list->items().size() == 1);
    const JsonValue* const again = list->items().data();
    require(*again == value);
    if (value.is_array()) require(span.elements == value.items().size());
    if (value.is_object()) require(span.elements == value.members().size());
    if (value.is_array() && !value.items().empty()) require(span.first == value.items()[0].kind());
  }
}

void check_edits(std::string_view text, const tandem::JsonScan& scan, uint8_t choice) {
  if (scan.is_array() || scan.members().empty()) return;
  const std::string key = scan.members()[choice % scan.members().size()].key;
  tandem::JsonEdit edit(scan);
  edit.erase(key);
  edit.set("fresh\n", "[1]");
  const std::string out = splice_text(text, edit.edits());
  const auto json = tandem::parse_json(out);
  require(json.has_value());
  const JsonValue* const fresh = json->find("fresh\n");
  require(fresh != nullptr);
  require(key == "fresh\n" || json->find(key) == nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto scan = tandem::scan_json(text, {.max_members = SIZE_MAX});
  const auto json = tandem::parse_json(text);
  require(scan.has_value() == (json && (json->is_object() || json->is_array())));
  if (scan) {
    check_members(text, *scan, *json);
    check_edits(text, *scan, data[0]);
  }
  const char* const end = text.data() + text.size();
  const char* const expected =
      tandem::json_skip(tandem::CpuLevel::kScalar).string(text.data(), end);
  for (const auto level : {tandem::CpuLevel::kAvx2, tandem::CpuLevel::kAvx512})
    require(tandem::json_skip(level).string(text.data(), end) == expected);
  return 0;
}
