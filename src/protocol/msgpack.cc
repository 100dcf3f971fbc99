#include "protocol/msgpack.h"

#include <utility>

namespace tandem::protocol {

void MsgpackWriter::head(uint8_t type, uint64_t value, int bytes) {
  out_ += static_cast<char>(type);
  for (int i = bytes - 1; i >= 0; --i) out_ += static_cast<char>(value >> (8 * i));
}

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

bool MsgpackReader::unsigned_integer(uint64_t& value) {
  uint8_t type = 0;
  if (!peek(type)) return false;
  if (type < 0x80) {
    value = type;
    return true;
  }
  if (type >= 0xCC && type <= 0xCF) return big_endian(1 << (type - 0xCC), value);
  return fail();
}

bool MsgpackReader::integer(int64_t& value) {
  if (!ok_ || at_ >= bytes_.size()) return fail();
  if (static_cast<uint8_t>(bytes_[at_]) == 0xD3) {
    ++at_;
    uint64_t raw = 0;
    if (!big_endian(8, raw)) return false;
    value = static_cast<int64_t>(raw);
    return true;
  }
  uint64_t raw = 0;
  if (!unsigned_integer(raw)) return false;
  if (raw > static_cast<uint64_t>(INT64_MAX)) return fail();
  value = static_cast<int64_t>(raw);
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

bool MsgpackReader::skip_value(int depth) {
  if (depth == 0 || !ok_ || at_ >= bytes_.size()) return fail();
  const auto type = static_cast<uint8_t>(bytes_[at_]);
  uint64_t number = 0;
  int64_t negative = 0;
  bool flag = false;
  std::string_view text;
  size_t count = 0;
  if (type < 0x80 || (type >= 0xCC && type <= 0xCF)) return unsigned_integer(number);
  if (type == 0xD3) return integer(negative);
  if (type == 0xC2 || type == 0xC3) return boolean(flag);
  if ((type & 0xE0) == 0xA0 || (type >= 0xD9 && type <= 0xDB)) return string(text);
  if (type >= 0xC4 && type <= 0xC6) return binary(text);
  const bool is_map = (type & 0xF0) == 0x80 || type == 0xDE || type == 0xDF;
  if (!(is_map ? map(count) : array(count))) return false;
  for (size_t i = 0; i < (is_map ? 2 * count : count); ++i) {
    if (!skip_value(depth - 1)) return false;
  }
  return true;
}

}  // namespace tandem::protocol
