#include "hub/hub_client.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/json_value.h"
#include "hub/model_name.h"

namespace tandem::hub {

namespace {

constexpr int kRedirects = 8;
constexpr int kPages = 50;  // of a listing
constexpr size_t kAnswerBytes = 32UL << 20;

std::string escaped(std::string_view path) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : path) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 ||
        std::string_view("-_.~/").find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += '%';
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
    }
  }
  return out;
}

tl::unexpected<Error> bad_hub(const std::string& what) {
  return make_error(502, "bad_hub", "The hub's answer makes no sense: " + what);
}

std::string text_of(const JsonValue* json, std::string_view key) {
  const JsonValue* const value = json == nullptr ? nullptr : json->find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The URL of `<url>; rel="next"` in a Link header.
std::string next_link(std::string_view header) {
  if (header.find("rel=\"next\"") == std::string_view::npos) return {};
  const size_t begin = header.find('<');
  const size_t end = header.find('>', begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) return {};
  return std::string(header.substr(begin + 1, end - begin - 1));
}

Result<RemoteFile> file_of(const JsonValue& entry) {
  RemoteFile file;
  file.path = text_of(&entry, "path");
  if (!is_safe_path(file.path)) return bad_hub("a file's path is not safe");
  const JsonValue* const size = entry.find("size");
  const int64_t bytes = size == nullptr ? -1 : size->as_integer().value_or(-1);
  if (bytes < 0) return bad_hub("a file without a size");
  file.size = static_cast<uint64_t>(bytes);
  const std::string large = text_of(entry.find("lfs"), "oid");
  const std::string small = text_of(&entry, "oid");
  if (is_hex(large, 64)) {
    file.sha256 = large;
  } else if (entry.find("lfs") == nullptr && is_hex(small, 40)) {
    file.git_sha1 = small;
  } else {
    return bad_hub("a file without a checksum: " + file.path);
  }
  return file;
}

}  // namespace

Result<HubClient> HubClient::create(HubOptions options) {
  TANDEM_TRY(endpoint, net::parse_url(options.endpoint));
  return HubClient(std::move(options), std::move(endpoint));
}

Result<HubClient::Place> HubClient::redirected(const Place& from, std::string_view location) const {
  if (location.starts_with("/") && !location.starts_with("//"))
    return Place{from.origin, std::string(location)};
  const bool absolute = location.starts_with("http://") || location.starts_with("https://");
  if (!absolute) return bad_hub("a redirect to nowhere");
  if (from.origin.tls && location.starts_with("http://"))
    return bad_hub("a redirect away from TLS");
  const size_t path = location.find_first_of("/?", location.find("://") + 3);
  TANDEM_TRY(origin, net::parse_url(location.substr(0, path)));
  std::string target(path == std::string_view::npos ? "/" : location.substr(path));
  if (target.front() == '?') target.insert(target.begin(), '/');
  return Place{std::move(origin), target.substr(0, target.find('#'))};
}

// `on_head` is asked for the answer that is no redirect; false: its body is kept instead of given
// to `on_bytes`.
Result<net::WholeResponse> HubClient::get(
    const std::string& target, uint64_t offset,
    const std::function<bool(const net::ClientHead&)>& on_head,
    const std::function<bool(std::string_view)>& on_bytes) const {
  Place place{endpoint_, target};
  for (int hop = 0; hop <= kRedirects; ++hop) {
    net::ClientRequest request;
    request.host = place.origin.host;
    request.port = place.origin.port;
    request.tls = place.origin.tls;
    request.target = place.target;
    request.headers.add("User-Agent", "tandem");
    if (offset > 0) request.headers.add("Range", "bytes=" + std::to_string(offset) + "-");
    if (!options_.token.empty() && place.origin.origin() == endpoint_.origin())
      request.headers.add("Authorization", "Bearer " + options_.token);
    bool streamed = false;
    std::string kept;
    auto answer = net::blocking_request(
        request, {std::chrono::seconds(10), options_.answer_limit, options_.idle_limit},
        [&](const net::ClientHead& head) {
          const bool redirect = head.status >= 300 && head.status < 400;
          streamed = !redirect && on_head && on_head(head);
        },
        [&](std::string_view bytes) {
          if (streamed) return on_bytes(bytes);
          if (kept.size() + bytes.size() > kAnswerBytes) return false;
          kept += bytes;
          return true;
        });
    if (!answer) return answer;
    const int status = answer->status;
    if (status < 301 || status > 308 || status == 304) {
      answer->body = std::move(kept);
      return answer;
    }
    TANDEM_TRY(next, redirected(place, answer->headers.get("location")));
    place = std::move(next);
  }
  return bad_hub("too many redirects");
}

Error HubClient::explain(int status, const std::string& repository, const std::string& what) const {
  const std::string where = options_.endpoint + "/" + repository;
  const bool token = !options_.token.empty();
  if (status == 401) {
    return {401, "unauthorized",
            token ? "The hub does not accept the token in HF_TOKEN, or " + where +
                        " does not exist. Check the name, and make a new token at " +
                        options_.endpoint + "/settings/tokens."
                  : where +
                        " needs a token, or does not exist. Check the name; for a private or "
                        "gated model set HF_TOKEN."};
  }
  if (status == 403) {
    return {403, "forbidden",
            "The hub refuses access to " + where +
                ". If the model is gated, accept its terms on that page" +
                (token ? "; the token in HF_TOKEN must be allowed to read it."
                       : " and set HF_TOKEN to a token of that account.")};
  }
  if (status == 404) {
    return {404, "model_not_found",
            "There is no " + what + " (" + where + ", revision " + options_.revision +
                "). Check the name and --revision."};
  }
  return {status == 429 || status >= 500 ? 503 : 502, status == 429 ? "rate_limited" : "bad_hub",
          "The hub answered " + std::to_string(status) + " for " + what + "."};
}

Result<JsonValue> HubClient::get_json(const std::string& target, const std::string& repository,
                                      std::string* next) const {
  TANDEM_TRY(answer, get(target, 0, {}, {}));
  if (answer.status != 200)
    return tl::unexpected(explain(answer.status, repository, "model " + repository));
  if (next != nullptr) *next = next_link(answer.headers.get("link"));
  auto json = parse_json(answer.body);
  if (!json) return bad_hub("not JSON");
  return json;
}

Result<HubClient::Listing> HubClient::list(const std::string& repository) const {
  const std::string api = endpoint_.base + "/api/models/" + repository;
  Listing listing;
  TANDEM_TRY(info, get_json(api + "/revision/" + escaped(options_.revision), repository, nullptr));
  listing.commit = text_of(&info, "sha");
  if (!is_hex(listing.commit, 40)) return bad_hub("no commit");
  std::string target = api + "/tree/" + listing.commit + "?recursive=true";
  for (int page = 0; page < kPages && !target.empty(); ++page) {
    std::string next;
    TANDEM_TRY(tree, get_json(target, repository, &next));
    if (!tree.is_array()) return bad_hub("the tree is no list");
    for (const JsonValue& entry : tree.items()) {
      if (text_of(&entry, "type") != "file") continue;
      TANDEM_TRY(file, file_of(entry));
      listing.files.push_back(std::move(file));
    }
    target.clear();
    if (!next.empty()) {
      TANDEM_TRY(place, redirected(Place{endpoint_, ""}, next));
      if (place.origin.origin() != endpoint_.origin()) return bad_hub("a page elsewhere");
      target = place.target;
    }
  }
  return listing;
}

Status HubClient::download(const std::string& repository, const std::string& commit,
                           const std::string& path, uint64_t offset,
                           const std::function<bool(uint64_t)>& on_start,
                           const std::function<bool(std::string_view)>& on_bytes) const {
  bool refused = false;
  const auto answer = get(
      endpoint_.base + "/" + repository + "/resolve/" + commit + "/" + escaped(path), offset,
      [&](const net::ClientHead& head) {
        if (head.status != 200 && head.status != 206) return false;
        const std::string expected = "bytes " + std::to_string(offset) + "-";
        const bool resumed =
            head.status == 206 && head.headers.get("content-range").starts_with(expected);
        refused = (head.status == 206 && !resumed) || !on_start(resumed ? offset : 0);
        return true;
      },
      [&](std::string_view bytes) { return !refused && on_bytes(bytes); });
  if (refused) return bad_hub("another part of the file than was asked for");
  if (!answer) return tl::unexpected(answer.error());
  if (answer->status != 200 && answer->status != 206)
    return tl::unexpected(explain(answer->status, repository, "file " + path));
  return {};
}

}  // namespace tandem::hub
