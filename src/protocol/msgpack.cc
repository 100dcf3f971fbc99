#include "protocol/msgpack.h"

#include <bit>
#include <utility>

namespace tandem::protocol {

void MsgpackWriter::head(uint8_t type, uint64_t value, int bytes) {
  out_ += static_cast<char>(type);
  for (int i = bytes - 1; i >= 0; --i) out_ += static_cast<char>(value >> (8 * i));
}

void MsgpackWriter::nil() { head(0xC0, 0, 0); }

void MsgpackWriter::real(double value) { head(0xCB, std::bit_cast<uint64_t>(value), 8); }

void MsgpackWriter::unsigned_integer(uint64_t value) {
  if (value < 0x80) return head(static_cast<uint8_t>(value), 0, 0);
  if (value <= 0xFF) return head(0xCC, value, 1);
  if (value <= 0xFFFF) return head(0xCD, value, 2);
  if (value <= 0xFFFFFFFF) return head(0xCE, value, 4);
  head(0xCF, value, 8);
}

void MsgpackWriter::integer(int64_t value) {
  if (value >= 0) return unsigned_integer(static_cast<uint64_t>(value));
  head(0xD3, static_cast<uint64_t>(value), 8);
}

void MsgpackWriter::boolean(bool value) { head(value ? 0xC3 : 0xC2, 0, 0); }

void MsgpackWriter::string(std::string_view text) {
  if (text.size() < 32) {
    head(static_cast<uint8_t>(0xA0 | text.size()), 0, 0);
  } else if (text.size() <= 0xFF) {
    head(0xD9, text.size(), 1);
  } else {
    head(0xDB, text.size(), 4);
  }
  out_ += text;
}

void MsgpackWriter::binary(std::span<const std::byte> bytes) {
  if (bytes.size() <= 0xFF) {
    head(0xC4, bytes.size(), 1);
  } else {
    head(0xC6, bytes.size(), 4);
  }
  out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void MsgpackWriter::array(size_t count) {
  if (count < 16) return head(static_cast<uint8_t>(0x90 | count), 0, 0);
  head(0xDD, count, 4);
}

void MsgpackWriter::map(size_t count) {
  if (count < 16) return head(static_cast<uint8_t>(0x80 | count), 0, 0);
  head(0xDF, count, 4);
}

bool MsgpackReader::fail() {
  ok_ = false;
  return false;
}

bool MsgpackReader::take(size_t count, std::string_view& out) {
  if (!ok_ || count > bytes_.size() - at_) return fail();
  out = bytes_.substr(at_, count);
  at_ += count;
  return true;
}

bool MsgpackReader::big_endian(int bytes, uint64_t& value) {
  std::string_view raw;
  if (!take(static_cast<size_t>(bytes), raw)) return false;
  value = 0;
  for (const char c : raw) value = value << 8 | static_cast<unsigned char>(c);
  return true;
}

bool MsgpackReader::peek(uint8_t& type) {
  if (!ok_ || at_ >= bytes_.size()) return fail();
  type = static_cast<uint8_t>(bytes_[at_++]);
  return true;
}

MsgpackReader::Kind MsgpackReader::kind() const {
  if (!ok_ || at_ >= bytes_.size()) return Kind::kEnd;
  const auto type = static_cast<uint8_t>(bytes_[at_]);
  if (type < 0x80 || type >= 0xE0 || (type >= 0xCC && type <= 0xD3)) return Kind::kInteger;
  if (type < 0x90 || type == 0xDE || type == 0xDF) return Kind::kMap;
  if (type < 0xA0 || type == 0xDC || type == 0xDD) return Kind::kArray;
  if (type < 0xC0 || (type >= 0xD9 && type <= 0xDB)) return Kind::kString;
  if (type == 0xC0) return Kind::kNil;
  if (type == 0xC2 || type == 0xC3) return Kind::kBoolean;
  if (type >= 0xC4 && type <= 0xC6) return Kind::kBinary;
  if (type == 0xCA || type == 0xCB) return Kind::kReal;
  return type == 0xC1 ? Kind::kEnd : Kind::kExtension;
}

bool MsgpackReader::nil() {
  if (kind() != Kind::kNil) return fail();
  ++at_;
  return true;
}

bool MsgpackReader::any_integer(uint64_t& value) {
  uint8_t type = 0;
  if (kind() != Kind::kInteger || !peek(type)) return fail();
  if (type < 0x80 || type >= 0xE0) {
    value = static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(type)));
    return true;
  }
  const bool is_signed = type >= 0xD0;
  const int bytes = 1 << (type - (is_signed ? 0xD0 : 0xCC));
  if (!big_endian(bytes, value)) return false;
  if (is_signed) {
    const int unused = 64 - 8 * bytes;
    value = static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
  }
  return true;
}

bool MsgpackReader::unsigned_integer(uint64_t& value) {
  const bool negative_form = kind() == Kind::kInteger && static_cast<uint8_t>(bytes_[at_]) >= 0xD0;
  if (!any_integer(value)) return false;
  return negative_form ? fail() : true;
}

bool MsgpackReader::integer(int64_t& value) {
  const bool negative_form = kind() == Kind::kInteger && static_cast<uint8_t>(bytes_[at_]) >= 0xD0;
  uint64_t raw = 0;
  if (!any_integer(raw)) return false;
  if (!negative_form && raw > static_cast<uint64_t>(INT64_MAX)) return fail();
  value = static_cast<int64_t>(raw);
  return true;
}

bool MsgpackReader::real(double& value) {
  if (kind() == Kind::kInteger) {
    int64_t whole = 0;
    if (!integer(whole)) return false;
    value = static_cast<double>(whole);
    return true;
  }
  uint8_t type = 0;
  if (kind() != Kind::kReal || !peek(type)) return fail();
  uint64_t bits = 0;
  if (!big_endian(type == 0xCA ? 4 : 8, bits)) return false;
  value = type == 0xCA ? std::bit_cast<float>(static_cast<uint32_t>(bits))
                       : std::bit_cast<double>(bits);
  return true;
}

bool MsgpackReader::boolean(bool& value) {
  uint8_t type = 0;
  if (!peek(type)) return false;
  if (type != 0xC2 && type != 0xC3) return fail();
  value = type == 0xC3;
  return true;
}

bool MsgpackReader::string(std::string_view& text) {
  uint8_t type = 0;
  if (!peek(type)) return false;
  uint64_t size = 0;
  if ((type & 0xE0) == 0xA0) {
    size = type & 0x1F;
  } else if (type >= 0xD9 && type <= 0xDB) {
    if (!big_endian(1 << (type - 0xD9), size)) return false;
  } else {
    return fail();
  }
  return take(size, text);
}

bool MsgpackReader::binary(std::string_view& bytes) {
  uint8_t type = 0;
  if (!peek(type)) return false;
  if (type < 0xC4 || type > 0xC6) return fail();
  uint64_t size = 0;
  return big_endian(1 << (type - 0xC4), size) && take(size, bytes);
}

bool MsgpackReader::array(size_t& count) {
  uint8_t type = 0;
  if (!peek(type)) return false;
  uint64_t value = type & 0x0F;
  if ((type & 0xF0) != 0x90) {
    if (type != 0xDC && type != 0xDD) return fail();
    if (!big_endian(type == 0xDC ? 2 : 4, value)) return false;
  }
  if (value > bytes_.size() - at_) return fail();
  count = value;
  return true;
}

bool MsgpackReader::map(size_t& count) {
  uint8_t type = 0;
  if (!peek(type)) return false;
  uint64_t value = type & 0x0F;
  if ((type & 0xF0) != 0x80) {
    if (type != 0xDE && type != 0xDF) return fail();
    if (!big_endian(type == 0xDE ? 2 : 4, value)) return false;
  }
  if (value > (bytes_.size() - at_) / 2) return fail();
  count = value;
  return true;
}

bool MsgpackReader::skip() { return skip_value(16); }

bool MsgpackReader::whole(std::string_view& encoded) {
  const size_t begin = at_;
  if (!skip()) return false;
  encoded = bytes_.substr(begin, at_ - begin);
  return true;
}

bool MsgpackReader::skip_extension() {
  uint8_t type = 0;
  if (!peek(type)) return false;
  uint64_t size = 0;
  if (type >= 0xD4 && type <= 0xD8) {
    size = uint64_t{1} << (type - 0xD4);
  } else if (!big_endian(1 << (type - 0xC7), size)) {
    return false;
  }
  std::string_view unused;
  return take(size + 1, unused);  // with its type
}

bool MsgpackReader::skip_value(int depth) {
  if (depth == 0) return fail();
  uint64_t number = 0;
  double real_number = 0;
  bool flag = false;
  std::string_view text;
  size_t count = 0;
  switch (kind()) {
    case Kind::kEnd:
      return fail();
    case Kind::kNil:
      return nil();
    case Kind::kBoolean:
      return boolean(flag);
    case Kind::kInteger:
      return any_integer(number);
    case Kind::kReal:
      return real(real_number);
    case Kind::kString:
      return string(text);
    case Kind::kBinary:
      return binary(text);
    case Kind::kExtension:
      return skip_extension();
    case Kind::kArray:
      if (!array(count)) return false;
      break;
    case Kind::kMap:
      if (!map(count)) return false;
      count *= 2;
      break;
  }
  for (size_t i = 0; i < count; ++i) {
    if (!skip_value(depth - 1)) return false;
  }
  return true;
}

}  // namespace tandem::protocol
