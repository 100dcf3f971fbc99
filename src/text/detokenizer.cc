#include "text/detokenizer.h"

#include "text/unicode.h"

namespace tandem::text {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_);
    joined.append(bytes);
    bytes = joined;
  }
  pending_.clear();
  while (!bytes.empty()) {
    const Utf8Scan scan = scan_utf8(bytes);
    if (scan.state == Utf8Prefix::kIncomplete) {
      pending_.assign(bytes);
      return;
    }
    out.append(scan.state == Utf8Prefix::kComplete ? bytes.substr(0, scan.size) : kReplacement);
    bytes.remove_prefix(scan.size);
  }
}

void Utf8Stream::finish(std::string& out) {
  if (!pending_.empty()) out.append(kReplacement);
  pending_.clear();
}

TokenBytes::TokenBytes(const Tokenizer& tokenizer, DetokenizeOptions options)
    : tokenizer_(&tokenizer),
      keep_special_(options.keep_special),
      strip_space_(tokenizer.spec().strip_leading_space && !options.continuation) {
  const JsonValue* remove = tokenizer.spec().normalizer.find("remove_extra_whitespaces");
  strip_spaces_ = remove != nullptr && remove->as_bool();
}

std::string_view TokenBytes::of(int32_t token) {
  if (tokenizer_->is_control(token)) {
    return keep_special_ ? tokenizer_->token_bytes(token) : std::string_view();
  }
  std::string_view bytes = tokenizer_->token_bytes(token);
  if (strip_space_ && !bytes.empty()) {
    strip_space_ = strip_spaces_ && bytes == " ";
    if (bytes[0] == ' ' && token != tokenizer_->spec().unknown) bytes.remove_prefix(1);
  }
  return bytes;
}

std::string Detokenizer::push(int32_t token) {
  std::string out;
  stream_.push(bytes_.of(token), out);
  return out;
}

std::string Detokenizer::push_bytes(std::string_view bytes) {
  std::string out;
  stream_.push(bytes, out);
  return out;
}

std::string Detokenizer::finish() {
  std::string out;
  stream_.finish(out);
  bytes_ = TokenBytes(*tokenizer_, options_);
  return out;
}

}  // namespace tandem::text
