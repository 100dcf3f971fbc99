// Scrubber: compares the bytes of pages with their digests on a thread of its own, which the system
// runs only when nothing else wants the processor.
//
// Whoever submits pages holds a reader of each until `done`.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "kv/integrity/page_digest.h"
#include "kv/pages/page_pool.h"
#include "ops/page_layout.h"

namespace tandem::engine {

struct ScrubPage {
  kv::PageTag tag;
  int32_t group = 0;
  int64_t block = 0;
  std::vector<uint64_t> digests;
  bool good = false;  // the answer
};

class Scrubber {
 public:
  // `done` runs on the scrubber's thread, once for each submission, in order.
  using Done = std::function<void(std::vector<ScrubPage>)>;
  Scrubber(ops::PageArenaView pages, const kv::DigestShape& shape);
  ~Scrubber();  // drops what waits
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  void submit(std::vector<ScrubPage> pages, Done done);  // any thread

 private:
  struct Work {
    std::vector<ScrubPage> pages;
    Done done;
  };
  void loop();

  ops::PageArenaView pages_;
  kv::DigestShape shape_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tandem::engine
