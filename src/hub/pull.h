// pull(): brings a model from a hub into the models directory. What is there and right is kept,
// what was begun goes on where it stopped, and nothing gets its name before its checksum is right.
// Several processes may pull the same model: one works, the others wait for it. Blocking.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "hub/hub_client.h"
#include "hub/model_name.h"

namespace tandem::hub {

class PullProgress {
 public:
  virtual ~PullProgress() = default;
  virtual void begin(size_t files, uint64_t bytes) = 0;
  virtual void waiting() = 0;  // another process pulls this model
  virtual void present(const RemoteFile& file) = 0;
  virtual void moved(const RemoteFile& file, uint64_t done) = 0;
  virtual void trouble(const RemoteFile& file, const Error& error) = 0;  // it is tried again
  virtual void finished(const RemoteFile& file) = 0;
};

struct PullOptions {
  HubOptions hub;
  std::string models_directory;
  int attempts = 5;                                       // in a row without one new byte
  Duration first_pause = std::chrono::milliseconds(500);  // between attempts; doubles
};

// Returns what find_model() will find. Errors: HubClient's; 507 "disk_full"; 500 "io_failed"; 502
// "bad_checksum".
Result<LocalModel> pull(const ModelName& name, const PullOptions& options, PullProgress& progress);

}  // namespace tandem::hub
