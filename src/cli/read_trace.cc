#include "cli/read_trace.h"

#include <fstream>
#include <iterator>
#include <memory>

#include <zstd.h>

namespace tandem::cli {

namespace {

constexpr size_t kMostBytes = size_t{1} << 30;
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";

Error bad_file(const std::string& path, const std::string& what) {
  return {400, "bad_file", path + " " + what};
}

Result<std::string> decompress(const std::string& path, const std::string& packed) {
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                   ZSTD_freeDCtx);
  std::string text;
  std::string piece(ZSTD_DStreamOutSize(), '\0');
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  size_t left = 1;
  while (in.pos < in.size) {
    ZSTD_outBuffer out{piece.data(), piece.size(), 0};
    left = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(left) != 0) return tl::unexpected(bad_file(path, "is damaged"));
    text.append(piece, 0, out.pos);
    if (text.size() > kMostBytes) return tl::unexpected(bad_file(path, "is larger than 1 GiB"));
  }
  if (left != 0) return tl::unexpected(bad_file(path, "ends too early"));
  return text;
}

}  // namespace

Result<std::string> read_trace_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return make_error(404, "file_not_found", "there is no file " + path);
  std::string bytes;
  std::string piece(size_t{1} << 20, '\0');
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    bytes.append(piece, 0, static_cast<size_t>(file.gcount()));
    if (bytes.size() > kMostBytes) return tl::unexpected(bad_file(path, "is larger than 1 GiB"));
  }
  if (std::string_view(bytes).starts_with(kZstdMagic)) return decompress(path, bytes);
  return bytes;
}

}  // namespace tandem::cli
