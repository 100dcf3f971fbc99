// A sender in a process of its own, to stop and to kill. For tests: the child is this test program,
// started again.
#pragma once

#include <memory>
#include <string>

#include <sys/types.h>

#include "kv/transfer/transport_subject.h"

namespace tandem::kv {

class ExposerProcess {
 public:
  // Null (and a failure) when it does not come up.
  static std::unique_ptr<ExposerProcess> start(const TransportSubject& subject);
  ~ExposerProcess();
  ExposerProcess(const ExposerProcess&) = delete;
  ExposerProcess& operator=(const ExposerProcess&) = delete;

  const Descriptor& descriptor() const { return descriptor_; }
  void signal(int number) const;
  void kill();  // and waits

 private:
  ExposerProcess() = default;
  pid_t pid_ = -1;
  int socket_ = -1;
  Descriptor descriptor_;
};

}  // namespace tandem::kv
