#include "engine/scrubber.h"

#include <utility>

#include <sched.h>

namespace tandem::engine {

Scrubber::Scrubber(ops::PageArenaView pages, const kv::DigestShape& shape)
    : pages_(pages), shape_(shape), thread_([this] { loop(); }) {}

Scrubber::~Scrubber() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Scrubber::submit(std::vector<ScrubPage> pages, Done done) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(pages), std::move(done)});
  }
  wake_.notify_one();
}

void Scrubber::loop() {
  const sched_param none{};
  (void)sched_setscheduler(0, SCHED_IDLE, &none);  // refused: it competes like the others
  while (true) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    for (ScrubPage& page : work.pages) {
      page.good = kv::page_digests(shape_, pages_.page(page.tag.page), page.group, page.block) ==
                  page.digests;
    }
    work.done(std::move(work.pages));
  }
}

}  // namespace tandem::engine
