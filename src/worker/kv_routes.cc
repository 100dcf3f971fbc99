// The worker's KV memory over HTTP, for `tandem kv`: what it holds, verifying and dropping what is
// cached. Like every internal route they need the secret. Never tokens, never text.
#include <algorithm>
#include <charconv>
#include <utility>

#include "worker/routes.h"

namespace tandem::worker {

namespace asio = net::asio;
using asio::awaitable;

namespace {

constexpr Duration kAnswerTime = std::chrono::seconds(30);
constexpr Duration kVerifyTime = std::chrono::minutes(60);
constexpr size_t kMaxListed = 1000;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// "a=1&b=2": the value of `key`, as sent; empty when it is not there.
std::string query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.starts_with(key) && pair.substr(key.size()).starts_with('='))
      return std::string(pair.substr(key.size() + 1));
  }
  return "";
}

Result<engine::KvListQuery> list_query(const std::string& query) {
  engine::KvListQuery out;
  out.prefix = query_value(query, "prefix");
  out.after = query_value(query, "after");
  for (const auto* id : {&out.prefix, &out.after}) {
    if (id->size() > 64 || !is_hex(*id))
      return invalid_request("Block ids are up to 64 lower-case hexadecimal digits.");
  }
  const std::string limit = query_value(query, "limit");
  if (limit.empty()) return out;
  const auto read = std::from_chars(limit.data(), limit.data() + limit.size(), out.limit);
  if (read.ec != std::errc() || read.ptr != limit.data() + limit.size() || out.limit < 1 ||
      out.limit > kMaxListed)
    return invalid_request("limit must be between 1 and " + std::to_string(kMaxListed) + ".");
  return out;
}

Result<engine::KvDropQuery> drop_query(const std::string& body) {
  engine::KvDropQuery out;
  if (body.empty()) return out;
  TANDEM_TRY(json, parse_json(body));
  if (!json.is_object()) return invalid_request("The body must be an object.");
  for (const auto& [key, value] : json.members()) {
    if (!value.is_string()) return invalid_request("It must be a string.", "/" + key);
    if (key == "prefix") {
      out.prefix = value.as_string();
    } else if (key == "scope") {
      out.scope = value.as_string();
    } else if (key == "salt") {
      out.salt = value.as_string();
    } else {
      return invalid_request("Unknown field.", "/" + key);
    }
  }
  if (out.prefix.size() > 64 || !is_hex(out.prefix))
    return invalid_request("It must be up to 64 lower-case hexadecimal digits.", "/prefix");
  if (!out.scope.empty() && (out.scope.size() != 16 || !is_hex(out.scope)))
    return invalid_request("It must be 16 lower-case hexadecimal digits.", "/scope");
  return out;
}

JsonValue number(int64_t value) { return JsonValue::integer(value); }
JsonValue large(uint64_t value) { return JsonValue::unsigned_integer(value); }
JsonValue text(std::string_view value) { return JsonValue::string(std::string(value)); }

JsonValue describe(const engine::KvStat& stat) {
  JsonValue pages = JsonValue::object();
  pages.set("total", number(stat.pages_total));
  pages.set("free", number(stat.pages_free));
  pages.set("cached", number(stat.pages_cached));
  pages.set("used", number(stat.pages_used));
  pages.set("quarantined", number(stat.pages_quarantined));
  pages.set("quarantine_limit", number(stat.quarantine_limit));
  pages.set("filling", number(stat.filling));
  pages.set("verified", number(stat.verified));
  pages.set("published", number(stat.published));
  pages.set("bytes", large(stat.page_bytes));
  JsonValue index = JsonValue::object();
  index.set("blocks", large(stat.index_blocks));
  index.set("bytes", large(stat.index_bytes));
  index.set("evicted_pages", large(stat.evictions));
  JsonValue integrity = JsonValue::object();
  integrity.set("level", text(kv::integrity_name(stat.level)));
  integrity.set("incidents", large(stat.incidents));
  integrity.set("scrubbed_pages", large(stat.scrubbed_pages));
  integrity.set("scrub_behind_seconds", JsonValue::real(stat.scrub_behind_seconds));
  JsonValue out = JsonValue::object();
  out.set("kv_dtype", text(ops::kv_dtype_name(stat.dtype)));
  out.set("block_tokens", number(stat.block_tokens));
  out.set("page_groups", number(stat.page_groups));
  out.set("pages", std::move(pages));
  out.set("index", std::move(index));
  out.set("integrity", std::move(integrity));
  return out;
}

JsonValue describe(const engine::KvListing& listing) {
  JsonValue blocks = JsonValue::array();
  for (const auto& block : listing.blocks) {
    JsonValue pages = JsonValue::array();
    for (const auto& page : block.pages) {
      JsonValue one = JsonValue::object();
      one.set("page", number(page.tag.page));
      if (page.tag.page >= 0) {
        one.set("generation", large(page.tag.generation));
        one.set("state", text(kv::page_state_name(page.state)));
        one.set("owners", number(page.owners));
        one.set("readers", number(page.readers));
        one.set("writers", number(page.writers));
      }
      pages.push_back(std::move(one));
    }
    JsonValue out = JsonValue::object();
    out.set("id", text(block.id));
    out.set("scope", text(block.scope));
    out.set("tokens", number(block.tokens));
    out.set("children", number(block.children));
    out.set("pages", std::move(pages));
    blocks.push_back(std::move(out));
  }
  JsonValue out = JsonValue::object();
  out.set("blocks", std::move(blocks));
  out.set("more", JsonValue::boolean(listing.more));
  return out;
}

JsonValue describe(const engine::VerifyProgress& progress) {
  JsonValue out = JsonValue::object();
  out.set("total", number(progress.total));
  out.set("checked", number(progress.checked));
  out.set("gone", number(progress.gone));
  out.set("bad", number(progress.bad));
  out.set("done", JsonValue::boolean(progress.done));
  return out;
}

Error no_answer() { return {504, "engine_timeout", "The engine did not answer in time."}; }

}  // namespace

awaitable<void> Worker::Routes::kv_stat(Request&, Responder& responder) {
  auto answers = std::make_shared<EventChannel<engine::KvStat>>(worker.reactor_);
  worker.engine_->cache_stat([answers](const engine::KvStat& stat) { answers->push(stat); });
  const auto stat = co_await answers->next(std::chrono::steady_clock::now() + kAnswerTime);
  if (!stat) co_return co_await send_error(responder, no_answer());
  JsonValue out = describe(*stat);
  const auto moved = worker.handoffs_->totals();
  JsonValue transfers = JsonValue::object();
  transfers.set("sent", number(static_cast<int64_t>(moved.sent)));
  transfers.set("sent_bytes", number(static_cast<int64_t>(moved.sent_bytes)));
  transfers.set("received", number(static_cast<int64_t>(moved.received)));
  transfers.set("received_bytes", number(static_cast<int64_t>(moved.received_bytes)));
  transfers.set("failed", number(static_cast<int64_t>(moved.failed)));
  transfers.set("open", number(static_cast<int64_t>(moved.open)));
  out.set("role", text(role_name(worker.options_.role)));
  out.set("transfers", std::move(transfers));
  co_await send_json(responder, 200, out.dump());
}

awaitable<void> Worker::Routes::kv_blocks(Request& request, Responder& responder) {
  auto query = list_query(request.query);
  if (!query) co_return co_await send_error(responder, query.error());
  auto answers = std::make_shared<EventChannel<engine::KvListing>>(worker.reactor_);
  worker.engine_->list_cache(std::move(*query), [answers](engine::KvListing listing) {
    answers->push(std::move(listing));
  });
  const auto listing = co_await answers->next(std::chrono::steady_clock::now() + kAnswerTime);
  if (!listing) co_return co_await send_error(responder, no_answer());
  co_await send_json(responder, 200, describe(*listing).dump());
}

awaitable<void> Worker::Routes::kv_drop(Request& request, Responder& responder) {
  auto query = drop_query(request.body);
  if (!query) co_return co_await send_error(responder, query.error());
  auto answers = std::make_shared<EventChannel<size_t>>(worker.reactor_);
  worker.engine_->drop_cache(std::move(*query),
                             [answers](size_t blocks) { answers->push(blocks); });
  const auto blocks = co_await answers->next(std::chrono::steady_clock::now() + kAnswerTime);
  if (!blocks) co_return co_await send_error(responder, no_answer());
  JsonValue out = JsonValue::object();
  out.set("dropped_blocks", number(static_cast<int64_t>(*blocks)));
  co_await send_json(responder, 200, out.dump());
}

// A line of JSON for each batch, the last one with "done": true.
awaitable<void> Worker::Routes::kv_verify(Request&, Responder& responder) {
  using Progress = Result<engine::VerifyProgress>;
  auto answers = std::make_shared<EventChannel<Progress>>(worker.reactor_);
  worker.engine_->verify_cache([answers](const Progress& progress) { answers->push(progress); });
  responder.on_disconnect([answers] { answers->interrupt(); });
  const TimePoint until = std::chrono::steady_clock::now() + kVerifyTime;
  bool begun = false;
  while (true) {
    const auto progress = co_await answers->next(until);
    if (!progress) {
      if (begun) responder.abort();
      if (!begun) co_await send_error(responder, no_answer());
      co_return;
    }
    if (!*progress) co_return co_await send_error(responder, progress->error());
    if (!std::exchange(begun, true)) {
      if (!co_await responder.begin_stream(200, {{"Content-Type", "application/x-ndjson"}}))
        co_return;
    }
    const std::string line = describe(**progress).dump() + "\n";
    if (!co_await responder.write(line)) co_return;
    if ((*progress)->done) break;
  }
  (void)co_await responder.finish();
}

}  // namespace tandem::worker
