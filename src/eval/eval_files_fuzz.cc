// Files of earlier runs: a reference's windows, a journal, a data set.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include <unistd.h>

#include "eval/items.h"
#include "eval/journal.h"
#include "eval/reference_file.h"
#include "eval/scoring.h"

namespace {

const std::string& scratch() {
  static const std::string path = "/tmp/eval-fuzz-" + std::to_string(::getpid());
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto positions = eval::decode_positions(text, 50, 3)) {
    // What was read can be written and read again.
    if (!eval::decode_positions(eval::encode_positions(*positions, 50), 50, 3)) std::abort();
  }
  (void)eval::final_answer(text);
  std::ofstream(scratch(), std::ios::binary) << text;
  (void)eval::read_questions(scratch());
  (void)eval::read_choice_questions(scratch());
  if (auto reader = eval::ReferenceReader::open(scratch())) {
    for (size_t i = 0; i < reader->windows(); ++i) {
      if (const auto payload = reader->payload(i)) (void)eval::decode_positions(*payload, 50, 3);
    }
  }
  (void)eval::Journal::open(scratch(), JsonValue::object());
  ::unlink(scratch().c_str());
  return 0;
}
