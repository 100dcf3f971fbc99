#include "eval/reference_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "numerics/digest.h"
#include "numerics/error.h"

namespace tandem::eval {
namespace {

constexpr std::string_view kMagic = "TDMREF01";
constexpr double kSteps = 524288;  // 2^19 to the nat
constexpr uint32_t kMostSteps = (1U << 24) - 1;
constexpr size_t kMaxHeader = 1 << 16;
constexpr uint32_t kMaxPayload = 1U << 31;

tl::unexpected<Error> invalid(std::string what) {
  return make_error(400, "invalid_reference", std::move(what));
}

template <typename Integer>
void put_integer(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof(Integer); ++i)
    out += static_cast<char>((static_cast<uint64_t>(value) >> (8 * i)) & 0xFF);
}

void put_varint(std::string& out, uint32_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_logprob(std::string& out, double logprob) {
  const double steps = std::clamp(std::round(-logprob * kSteps), 0.0, double{kMostSteps});
  const auto value = static_cast<uint32_t>(steps);
  for (int i = 0; i < 3; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
}

class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }

  std::optional<uint64_t> integer(size_t size) {
    if (bytes_.size() < size) return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(bytes_[i])} << (8 * i);
    bytes_.remove_prefix(size);
    return value;
  }
  std::optional<uint32_t> varint() {
    uint32_t value = 0;
    for (int shift = 0; shift < 28; shift += 7) {
      const auto byte = integer(1);
      if (!byte) return std::nullopt;
      value |= static_cast<uint32_t>(*byte & 0x7F) << shift;
      if (*byte < 0x80) return value;
    }
    return std::nullopt;
  }
  std::optional<double> logprob() {
    const auto steps = integer(3);
    return steps ? std::optional(-static_cast<double>(*steps) / kSteps) : std::nullopt;
  }

 private:
  std::string_view bytes_;
};

std::optional<ReferencePosition> decode_position(Bytes& bytes, int32_t vocab) {
  ReferencePosition out;
  const auto target = bytes.logprob();
  const auto likeliest = bytes.varint();
  const auto count = bytes.varint();
  const auto most = static_cast<uint32_t>(vocab);
  if (!target || !likeliest || !count || *likeliest >= most || *count == 0 || *count > most)
    return std::nullopt;
  out.target_logprob = *target;
  out.likeliest = static_cast<int32_t>(*likeliest);
  int64_t token = -1;
  for (uint32_t i = 0; i < *count; ++i) {
    const auto distance = bytes.varint();
    const auto logprob = bytes.logprob();
    if (!distance || !logprob || *distance == 0) return std::nullopt;
    token += *distance;
    if (token >= vocab) return std::nullopt;
    out.tokens.push_back(static_cast<int32_t>(token));
    out.logprobs.push_back(*logprob);
  }
  out.rest_logprob = -std::numeric_limits<double>::infinity();
  if (*count < most) {
    const auto rest = bytes.logprob();
    if (!rest) return std::nullopt;
    out.rest_logprob = *rest;
  }
  return out;
}

}  // namespace

ReferencePosition reference_position(std::span<const float> logits, int32_t target, int32_t top) {
  const size_t count = top <= 0 ? logits.size() : std::min(static_cast<size_t>(top), logits.size());
  ReferencePosition out;
  out.tokens.resize(logits.size());
  std::iota(out.tokens.begin(), out.tokens.end(), 0);
  const double norm = numerics::log_sum_exp(logits);
  double rest = 0;
  if (count < logits.size()) {
    const auto likelier = [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    std::nth_element(out.tokens.begin(), out.tokens.begin() + static_cast<std::ptrdiff_t>(count),
                     out.tokens.end(), likelier);
    for (size_t i = count; i < out.tokens.size(); ++i)
      rest += std::exp(logits[out.tokens[i]] - norm);
    out.tokens.resize(count);
    std::ranges::sort(out.tokens);
  }
  for (const int32_t token : out.tokens) out.logprobs.push_back(logits[token] - norm);
  out.rest_logprob = std::log(rest);
  out.target_logprob = logits[static_cast<size_t>(target)] - norm;
  out.likeliest = static_cast<int32_t>(numerics::argmax(logits));
  return out;
}

std::string encode_positions(std::span<const ReferencePosition> positions, int32_t vocab) {
  std::string out;
  for (const ReferencePosition& position : positions) {
    put_logprob(out, position.target_logprob);
    put_varint(out, static_cast<uint32_t>(position.likeliest));
    put_varint(out, static_cast<uint32_t>(position.tokens.size()));
    int32_t before = -1;
    for (size_t i = 0; i < position.tokens.size(); ++i) {
      put_varint(out, static_cast<uint32_t>(position.tokens[i] - before));
      put_logprob(out, position.logprobs[i]);
      before = position.tokens[i];
    }
    if (position.tokens.size() < static_cast<size_t>(vocab))
      put_logprob(out, position.rest_logprob);
  }
  return out;
}

Result<std::vector<ReferencePosition>> decode_positions(std::string_view payload, int32_t vocab,
                                                        size_t count) {
  Bytes bytes(payload);
  std::vector<ReferencePosition> out;
  for (size_t i = 0; i < count; ++i) {
    auto position = decode_position(bytes, vocab);
    if (!position) return invalid("A window of the reference is damaged.");
    out.push_back(*std::move(position));
  }
  if (!bytes.empty()) return invalid("A window of the reference holds too many positions.");
  return out;
}

Result<ReferenceWriter> ReferenceWriter::open(const std::string& path, const JsonValue& header) {
  ReferenceWriter writer;
  writer.path_ = path;
  std::error_code failed;
  if (std::filesystem::file_size(path, failed) > 0 && !failed) {
    TANDEM_TRY(reader, ReferenceReader::open(path));
    if (!(reader.header() == header))
      return invalid(path +
                     " is a reference of another model, text or setting; remove it or give "
                     "another file.");
    writer.windows_ = reader.windows();
    std::filesystem::resize_file(path, reader.end(), failed);
    if (failed) return invalid(path + " cannot be written: " + failed.message() + ".");
  }
  writer.out_.open(path, std::ios::binary | std::ios::app);
  if (writer.windows_ == 0 && std::filesystem::file_size(path, failed) == 0) {
    const std::string text = header.dump();
    std::string head(kMagic);
    put_integer(head, static_cast<uint32_t>(text.size()));
    writer.out_ << head << text << std::flush;
  }
  if (!writer.out_) return invalid(path + " cannot be written.");
  return writer;
}

Status ReferenceWriter::append(std::string_view payload) {
  std::string head;
  put_integer(head, static_cast<uint32_t>(windows_));
  put_integer(head, static_cast<uint32_t>(payload.size()));
  std::string tail;
  put_integer(tail, numerics::xxh3(std::as_bytes(std::span(payload))));
  out_ << head << payload << tail << std::flush;
  if (!out_) return invalid(path_ + " cannot be written.");
  ++windows_;
  return {};
}

Result<ReferenceReader> ReferenceReader::open(const std::string& path) {
  ReferenceReader reader;
  reader.path_ = path;
  reader.in_.open(path, std::ios::binary);
  if (!reader.in_) return make_error(400, "file_not_found", path + " cannot be read.");
  std::error_code failed;
  const uint64_t size = std::filesystem::file_size(path, failed);
  std::string head(kMagic.size() + 4, '\0');
  reader.in_.read(head.data(), static_cast<std::streamsize>(head.size()));
  if (!reader.in_ || !head.starts_with(kMagic))
    return invalid(path + " is not a file of a reference run.");
  const auto length = *Bytes(std::string_view(head).substr(kMagic.size())).integer(4);
  if (length > kMaxHeader) return invalid(path + " has a damaged header.");
  std::string text(length, '\0');
  reader.in_.read(text.data(), static_cast<std::streamsize>(text.size()));
  auto json = parse_json(text);
  if (!reader.in_ || !json || !json->is_object()) return invalid(path + " has a damaged header.");
  reader.header_ = *std::move(json);
  uint64_t at = head.size() + length;
  for (std::string words(8, '\0'); at + 16 <= size;) {
    reader.in_.seekg(static_cast<std::streamoff>(at));
    reader.in_.read(words.data(), 8);
    Bytes bytes(words);
    const auto index = *bytes.integer(4);
    const auto bytes_of_payload = *bytes.integer(4);
    if (!reader.in_ || index != reader.offsets_.size() || bytes_of_payload > kMaxPayload)
      return invalid(path + " is damaged at window " + std::to_string(reader.offsets_.size()) +
                     ".");
    if (at + 16 + bytes_of_payload > size) break;  // torn
    reader.offsets_.push_back(at);
    at += 16 + bytes_of_payload;
  }
  reader.end_ = at;
  return reader;
}

Result<std::string> ReferenceReader::payload(size_t window) {
  in_.clear();
  in_.seekg(static_cast<std::streamoff>(offsets_[window] + 4));
  std::string word(4, '\0');
  in_.read(word.data(), 4);
  std::string out(*Bytes(word).integer(4), '\0');
  in_.read(out.data(), static_cast<std::streamsize>(out.size()));
  std::string sum(8, '\0');
  in_.read(sum.data(), 8);
  if (!in_ || *Bytes(sum).integer(8) != numerics::xxh3(std::as_bytes(std::span(out))))
    return invalid(path_ + " is damaged at window " + std::to_string(window) + ".");
  return out;
}

}  // namespace tandem::eval
