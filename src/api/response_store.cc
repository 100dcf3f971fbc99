#include "api/response_store.h"

#include <utility>

namespace tandem::api {

void ResponseStore::drop(Order::iterator at) {
  bytes_ -= at->bytes;
  by_id_.erase(at->id);
  order_.erase(at);
}

void ResponseStore::put(const std::string& id, uint64_t tenant, StoredResponse response) {
  const size_t bytes =
      id.size() + response.response.size() + response.input.size() + response.items.size() + 256;
  const std::lock_guard lock(mutex_);
  if (const auto known = by_id_.find(id); known != by_id_.end()) drop(known->second);
  if (bytes > max_bytes_) return;
  while (bytes_ + bytes > max_bytes_) drop(std::prev(order_.end()));
  order_.push_front(
      {id, tenant, bytes, std::make_shared<const StoredResponse>(std::move(response))});
  by_id_[id] = order_.begin();
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id, uint64_t tenant) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->tenant != tenant) return nullptr;
  order_.splice(order_.begin(), order_, found->second);
  return found->second->response;
}

bool ResponseStore::erase(const std::string& id, uint64_t tenant) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->tenant != tenant) return false;
  drop(found->second);
  return true;
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

JsonValue input_items(const JsonValue& body) {
  const JsonValue* input = body.find("input");
  if (input == nullptr || input->is_null()) return JsonValue::array();
  if (!input->is_string()) return *input;
  return JsonValue::array({JsonValue::object({{"type", JsonValue::string("message")},
                                              {"role", JsonValue::string("user")},
                                              {"content", *input}})});
}

Error response_not_found(const std::string& id) {
  return {404, "response_not_found",
          "there is no response '" + id.substr(0, 128) +
              "' here: it was not kept, or it is too long ago; send the whole conversation"};
}

}  // namespace tandem::api
