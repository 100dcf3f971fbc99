// ResponseStore: responses of the Responses dialect that others may go on from, and the
// conversations behind them. In memory, bounded in bytes; the least recently used go first. Each
// belongs to the key that asked for it. Any thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/json_value.h"

namespace tandem::api {

struct StoredResponse {
  std::string response;  // the whole object, JSON
  std::string input;     // the items that were sent with it, a JSON array
  std::string items;     // of the whole conversation, its output too, a JSON array
};

class ResponseStore {
 public:
  explicit ResponseStore(size_t max_bytes) : max_bytes_(max_bytes) {}

  // One that is larger than all the room is not kept.
  void put(const std::string& id, uint64_t tenant, StoredResponse response);
  // Null: there is none of that tenant's.
  std::shared_ptr<const StoredResponse> find(const std::string& id, uint64_t tenant);
  bool erase(const std::string& id, uint64_t tenant);
  size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    uint64_t tenant = 0;
    size_t bytes = 0;
    std::shared_ptr<const StoredResponse> response;
  };
  using Order = std::list<Entry>;
  void drop(Order::iterator at);

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  Order order_;  // the latest first
  std::unordered_map<std::string, Order::iterator> by_id_;
  size_t bytes_ = 0;
};

// The input of a Responses body as items: a text is one message.
JsonValue input_items(const JsonValue& body);

// 404: nobody knows this response (any more).
Error response_not_found(const std::string& id);

}  // namespace tandem::api
