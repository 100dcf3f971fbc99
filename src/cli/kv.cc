// `tandem kv`: looks into the KV memory of a running worker: what it holds, whether it is still
// what was written, and how fast this machine moves it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/json_value.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "config/options.h"
#include "device/shared_arena.h"
#include "kv/integrity/page_digest.h"
#include "net/http_client.h"

namespace tandem::cli {
namespace {

constexpr int kDamaged = 3;  // exit status: something is wrong with the memory itself

struct KvFlags {
  std::string url = "http://127.0.0.1:8100";
  bool json = false;
  std::string prefix;
  std::string scope;
  std::string salt;
  bool all = false;
  int32_t limit = 100;
  config::Bytes size{size_t{256} << 20};
};

// One JSON answer of the worker, or its error.
Result<JsonValue> ask(const KvFlags& flags, const std::string& method, const std::string& target,
                      std::string body = "",
                      const std::function<void(const JsonValue&)>& on_line = {}) {
  TANDEM_TRY(url, net::parse_url(flags.url));
  net::ClientRequest request;
  request.method = method;
  request.host = url.host;
  request.port = url.port;
  request.tls = url.tls;
  request.target = url.base + target;
  request.body = std::move(body);
  if (!request.body.empty()) request.headers.add("Content-Type", "application/json");
  if (!shared_secret().empty()) request.headers.add("x-tandem-auth", shared_secret());
  int status = 0;
  std::string held;
  const auto on_body = [&](std::string_view bytes) {
    held += bytes;
    size_t end = 0;
    while (on_line && status == 200 && (end = held.find('\n')) != std::string::npos &&
           end + 1 < held.size()) {
      if (const auto line = parse_json(held.substr(0, end))) on_line(*line);
      held.erase(0, end + 1);
    }
    return held.size() < (size_t{64} << 20);
  };
  TANDEM_TRY(reply,
             net::blocking_request(
                 request, {}, [&](const net::ClientHead& head) { status = head.status; }, on_body));
  (void)reply;
  auto json = parse_json(held);
  if (status == 200 && json) return json;
  const JsonValue* error = json ? json->find("error") : nullptr;
  const JsonValue* message = error == nullptr ? nullptr : error->find("message");
  if (message == nullptr || !message->is_string())
    return make_error(
        502, "bad_response",
        flags.url + " answered with status " + std::to_string(status) + "; is it a Tandem worker?");
  std::string hint;
  if (status == 401) hint = " Put the workers' secret into TANDEM_SECRET.";
  return make_error(status, "refused", message->as_string() + hint);
}

int64_t number(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value == nullptr ? 0 : static_cast<int64_t>(value->as_double().value_or(0));
}
std::string text(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}
const JsonValue& part(const JsonValue& object, std::string_view key) {
  static const JsonValue kNothing = JsonValue::object();
  const JsonValue* value = object.find(key);
  return value == nullptr ? kNothing : *value;
}
std::string bytes(int64_t count) { return format_bytes(static_cast<size_t>(count)); }

int stat(const KvFlags& flags) {
  const auto answer = ask(flags, "GET", "/tandem/v1/kv");
  if (!answer) return report(answer.error());
  if (flags.json) return std::puts(answer->dump().c_str()) < 0 ? 1 : 0;
  const JsonValue& pages = part(*answer, "pages");
  const JsonValue& index = part(*answer, "index");
  const JsonValue& integrity = part(*answer, "integrity");
  const JsonValue& moved = part(*answer, "transfers");
  const auto p = [&](const char* key) { return static_cast<long long>(number(pages, key)); };
  std::printf("worker       %s\n", text(*answer, "role").c_str());
  std::printf("pages        %lld of %s (%s KV, %lld tokens, %lld page groups)\n", p("total"),
              bytes(number(pages, "bytes")).c_str(), text(*answer, "kv_dtype").c_str(),
              static_cast<long long>(number(*answer, "block_tokens")),
              static_cast<long long>(number(*answer, "page_groups")));
  std::printf("  used       %lld\n  cached     %lld\n  free       %lld\n", p("used"), p("cached"),
              p("free"));
  std::printf("  quarantine %lld of at most %lld\n", p("quarantined"), p("quarantine_limit"));
  std::printf("  states     %lld filling, %lld verified, %lld published\n", p("filling"),
              p("verified"), p("published"));
  std::printf("index        %lld blocks, %s, %lld pages evicted\n",
              static_cast<long long>(number(index, "blocks")),
              bytes(number(index, "bytes")).c_str(),
              static_cast<long long>(number(index, "evicted_pages")));
  std::printf("integrity    %s, %lld incidents, %lld pages scrubbed, %lld s behind\n",
              text(integrity, "level").c_str(),
              static_cast<long long>(number(integrity, "incidents")),
              static_cast<long long>(number(integrity, "scrubbed_pages")),
              static_cast<long long>(number(integrity, "scrub_behind_seconds")));
  std::printf("transfers    %lld sent (%s), %lld received (%s), %lld failed, %lld open\n",
              static_cast<long long>(number(moved, "sent")),
              bytes(number(moved, "sent_bytes")).c_str(),
              static_cast<long long>(number(moved, "received")),
              bytes(number(moved, "received_bytes")).c_str(),
              static_cast<long long>(number(moved, "failed")),
              static_cast<long long>(number(moved, "open")));
  return 0;
}

void print_block(const JsonValue& block) {
  std::printf("%-16s  %-16s %7lld %9lld ", text(block, "id").substr(0, 16).c_str(),
              text(block, "scope").c_str(), static_cast<long long>(number(block, "tokens")),
              static_cast<long long>(number(block, "children")));
  for (const JsonValue& page : part(block, "pages").items()) {
    if (number(page, "page") < 0) {
      std::printf(" -");
      continue;
    }
    std::printf(" %lld@%llu %s %lld/%lld/%lld", static_cast<long long>(number(page, "page")),
                static_cast<unsigned long long>(number(page, "generation")),
                text(page, "state").c_str(), static_cast<long long>(number(page, "owners")),
                static_cast<long long>(number(page, "readers")),
                static_cast<long long>(number(page, "writers")));
  }
  std::printf("\n");
}

int list(const KvFlags& flags) {
  JsonValue blocks = JsonValue::array();
  std::string after;
  bool more = true;
  while (more && static_cast<int32_t>(blocks.items().size()) < flags.limit) {
    const size_t left = static_cast<size_t>(flags.limit) - blocks.items().size();
    const auto answer =
        ask(flags, "GET",
            "/tandem/v1/kv/blocks?limit=" + std::to_string(std::min<size_t>(left, 500)) +
                "&prefix=" + flags.prefix + "&after=" + after);
    if (!answer) return report(answer.error());
    const JsonValue* goes_on = answer->find("more");
    more = goes_on != nullptr && goes_on->is_bool() && goes_on->as_bool();
    for (const JsonValue& block : part(*answer, "blocks").items()) {
      after = text(block, "id");
      blocks.push_back(block);
    }
    if (after.empty()) break;
  }
  if (flags.json) {
    JsonValue out = JsonValue::object();
    out.set("blocks", std::move(blocks));
    out.set("more", JsonValue::boolean(more));
    std::puts(out.dump().c_str());
    return 0;
  }
  std::printf("%-16s  %-16s %7s %9s  %s\n", "block", "scope", "tokens", "children",
              "page@generation state owners/readers/writers");
  for (const JsonValue& block : blocks.items()) print_block(block);
  if (more) std::printf("... more; raise --limit or give --prefix\n");
  return 0;
}

int verify(const KvFlags& flags) {
  const bool watched = isatty(STDERR_FILENO) == 1;
  const auto answer = ask(flags, "POST", "/tandem/v1/kv/verify", "", [&](const JsonValue& line) {
    if (!watched) return;
    std::fprintf(stderr, "\r%lld of %lld pages",
                 static_cast<long long>(number(line, "checked") + number(line, "gone")),
                 static_cast<long long>(number(line, "total")));
  });
  if (watched) std::fputs("\r\033[K", stderr);
  if (!answer) return report(answer.error());
  if (flags.json) {
    std::puts(answer->dump().c_str());
  } else {
    std::printf(
        "%lld pages compared with their digests: %lld are wrong; %lld left the cache or "
        "have no digest\n",
        static_cast<long long>(number(*answer, "checked")),
        static_cast<long long>(number(*answer, "bad")),
        static_cast<long long>(number(*answer, "gone")));
  }
  return number(*answer, "bad") > 0 ? kDamaged : 0;
}

int drop(const KvFlags& flags) {
  if (!flags.all && flags.prefix.empty() && flags.scope.empty() && flags.salt.empty())
    return report(
        Error{400, "invalid_option", "Say what to drop: --all, --prefix, --scope or --salt."});
  JsonValue body = JsonValue::object();
  if (!flags.prefix.empty()) body.set("prefix", JsonValue::string(flags.prefix));
  if (!flags.scope.empty()) body.set("scope", JsonValue::string(flags.scope));
  if (!flags.salt.empty()) body.set("salt", JsonValue::string(flags.salt));
  const auto answer = ask(flags, "POST", "/tandem/v1/kv/drop", body.dump());
  if (!answer) return report(answer.error());
  if (flags.json) return std::puts(answer->dump().c_str()) < 0 ? 1 : 0;
  std::printf("%lld blocks dropped\n", static_cast<long long>(number(*answer, "dropped_blocks")));
  return 0;
}

// Bytes a second of `work`, which handles `size` bytes, over about half a second.
double rate(size_t size, const std::function<void()>& work) {
  work();  // pages are committed
  double best = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  do {
    const auto start = std::chrono::steady_clock::now();
    work();
    const double seconds = to_seconds(std::chrono::steady_clock::now() - start);
    best = std::max(best, static_cast<double>(size) / seconds);
  } while (std::chrono::steady_clock::now() < end);
  return best;
}

int bench(const KvFlags& flags) {
  // Pages like those of a model with 8 KV heads of 128, BF16, four layers in each.
  const kv::DigestShape shape{.kv_heads = 8,
                              .head_dim = 128,
                              .block_tokens = 16,
                              .element_bytes = 2,
                              .scale_bytes = 0,
                              .layers = {{0, 1, 2, 3}}};
  const size_t page = 4 * shape.layer_bytes();
  const auto pages = static_cast<int32_t>(std::max<size_t>(flags.size.value / page, 1));
  const size_t size = page * static_cast<size_t>(pages);
  auto arena = device::SharedArena::create(page, pages);
  if (!arena) return report(arena.error());
  // As another process sees it.
  const device::ArenaShape& seen = (*arena)->shape();
  void* const mapped =
      mmap(nullptr, seen.segment_bytes, PROT_READ, MAP_SHARED, (*arena)->read_only_descriptor(), 0);
  if (mapped == MAP_FAILED)
    return report(Error{500, "bench_failed", "Shared memory could not be mapped."});
  const auto* const table = static_cast<const std::atomic<uint64_t>*>(mapped);
  const std::byte* const shared_pages = static_cast<const std::byte*>(mapped) + seen.pages_offset;
  std::byte* const from = (*arena)->pages();
  std::memset(from, 0x5A, size);
  for (int32_t i = 0; i < pages; ++i) (*arena)->set_generation(i, 1);
  std::vector<std::byte> to(size);
  uint64_t sum = 0;
  bool intact = true;
  const double copied = rate(size, [&] { std::memcpy(to.data(), from, size); });
  const double digested = rate(size, [&] {
    for (int32_t i = 0; i < pages; ++i)
      sum += kv::page_digests(shape, from + static_cast<size_t>(i) * page, 0, i).back();
  });
  const double shared = rate(size, [&] {
    for (int32_t i = 0; i < pages; ++i) {
      const size_t at = static_cast<size_t>(i) * seen.page_stride;
      std::memcpy(to.data() + static_cast<size_t>(i) * page, shared_pages + at, page);
      intact &= table[i].load(std::memory_order_acquire) == 1;
    }
  });
  munmap(mapped, seen.segment_bytes);
  if (!intact || sum == 0) return report(Error{500, "bench_failed", "The copies were not intact."});
  if (flags.json) {
    JsonValue out = JsonValue::object();
    out.set("bytes", JsonValue::unsigned_integer(size));
    out.set("memcpy_bytes_per_second", JsonValue::real(copied));
    out.set("digest_bytes_per_second", JsonValue::real(digested));
    out.set("shared_memory_bytes_per_second", JsonValue::real(shared));
    std::puts(out.dump().c_str());
    return 0;
  }
  std::printf("%s in pages of %s, one thread, the best of half a second each\n",
              format_bytes(size).c_str(), format_bytes(page).c_str());
  std::printf("memcpy          %6.2f GB/s\n", copied / 1e9);
  std::printf("digest          %6.2f GB/s  %3.0f %% of memcpy\n", digested / 1e9,
              100 * digested / copied);
  std::printf("shared memory   %6.2f GB/s  %3.0f %% of memcpy (read-only mapping, generations)\n",
              shared / 1e9, 100 * shared / copied);
  return 0;
}

struct Action {
  const char* name;
  const char* summary;
  int (*run)(const KvFlags&);
  void (*declare)(config::Options&, KvFlags&);
  const char* example;
};

void declare_nothing(config::Options&, KvFlags&) {}
void declare_list(config::Options& options, KvFlags& flags) {
  options.value(flags.prefix, "prefix", "HEX", "only blocks whose id begins so");
  options.value(flags.limit, "limit", "N", "blocks to show at most", 1, 1 << 20);
}
void declare_drop(config::Options& options, KvFlags& flags) {
  options.flag(flags.all, "all", "every block that nobody uses");
  options.value(flags.prefix, "prefix", "HEX", "those whose id begins so");
  options.value(flags.scope, "scope", "HEX", "those of one salt, by its scope as `ls` shows it");
  options.value(flags.salt, "salt", "TEXT", "those of one salt");
}
void declare_bench(config::Options& options, KvFlags& flags) {
  options.value(flags.size, "size", "SIZE", "bytes to move");
}

constexpr Action kActions[] = {
    {"stat", "shows pages, index, incidents and transfers of a worker", stat, declare_nothing,
     "tandem kv stat http://127.0.0.1:8102"},
    {"ls", "lists the blocks in its cache", list, declare_list,
     "tandem kv ls http://127.0.0.1:8102 --limit 20"},
    {"verify", "compares every cached page with its digest now (--kv-integrity full)", verify,
     declare_nothing, "tandem kv verify http://127.0.0.1:8102"},
    {"drop", "gives up cached blocks that nobody uses", drop, declare_drop,
     "tandem kv drop http://127.0.0.1:8102 --all"},
    {"bench", "measures how fast this machine copies, digests and shares memory", bench,
     declare_bench, "tandem kv bench"},
};

void print_help(std::FILE* out) {
  std::fputs(
      "Looks into the KV memory of a running worker.\n\n"
      "Usage: tandem kv ACTION [URL] [OPTIONS]\n\nActions:\n",
      out);
  for (const Action& action : kActions)
    std::fprintf(out, "  %-8s %s\n", action.name, action.summary);
  std::fputs(
      "\nURL is a worker's, not the router's (`tandem up` names them). The workers' secret is "
      "read from TANDEM_SECRET.\nExit status: 0 well, 1 no answer or refused, 2 wrong usage, "
      "3 damaged pages were found.\n`tandem kv ACTION --help` shows an action's options.\n",
      out);
}

}  // namespace

int run_kv(const Arguments& arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    print_help(stdout);
    return 0;
  }
  for (const Action& action : kActions) {
    if (name != action.name) continue;
    KvFlags flags;
    std::string summary = std::string(action.summary) + ".";
    summary[0] = static_cast<char>(summary[0] - 'a' + 'A');
    config::Options options("kv " + name, summary);
    options.example(action.example);
    if (action.run != bench)
      options.positional(flags.url, "URL", "of the worker; else http://127.0.0.1:8100", false);
    action.declare(options, flags);
    options.flag(flags.json, "json", "JSON instead of a table");
    const auto parsed = options.parse({arguments.begin() + 1, arguments.end()});
    if (!parsed) return report(parsed.error());
    if (parsed->help) {
      std::fputs(parsed->help->c_str(), stdout);
      return 0;
    }
    return action.run(flags);
  }
  if (!name.empty()) std::fprintf(stderr, "tandem kv: there is no action \"%s\"\n\n", name.c_str());
  print_help(stderr);
  return 2;
}

}  // namespace tandem::cli
