// Inside of reactor.cc and event.cc: coroutines that wait in an Event. They are not in the
// io_context, so the reactor must know them to destroy them with it (a coroutine that holds the
// object that holds the Event would otherwise keep itself alive for ever).
#pragma once

namespace tandem::net {

class Parked {
 public:
  virtual ~Parked() = default;
  virtual void drop() = 0;  // destroys the waiting coroutine without resuming it

  Parked* next_parked = nullptr;
  Parked* previous_parked = nullptr;
};

class ParkedList {
 public:
  void insert(Parked& parked) {
    parked.next_parked = head_;
    parked.previous_parked = nullptr;
    if (head_ != nullptr) head_->previous_parked = &parked;
    head_ = &parked;
  }
  void remove(Parked& parked) {
    if (parked.previous_parked != nullptr) parked.previous_parked->next_parked = parked.next_parked;
    if (parked.next_parked != nullptr) parked.next_parked->previous_parked = parked.previous_parked;
    if (head_ == &parked) head_ = parked.next_parked;
    parked.next_parked = parked.previous_parked = nullptr;
  }
  void drop_all() {
    closing_ = true;
    while (head_ != nullptr) head_->drop();  // drop() removes itself first
  }
  bool closing() const { return closing_; }

 private:
  Parked* head_ = nullptr;
  bool closing_ = false;
};

}  // namespace tandem::net
