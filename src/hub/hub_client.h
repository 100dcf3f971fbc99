// HubClient: reads a Hugging Face hub: what a repository has, and the bytes of its files. Blocking;
// one thread at a time.
//
// The token is sent to the endpoint's own origin only: a redirect elsewhere (the hub keeps large
// files on other hosts) goes without it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/json_value.h"
#include "base/result.h"
#include "net/http_client.h"

namespace tandem::hub {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;                                 // empty: none
  std::string revision = "main";                     // branch, tag or commit
  Duration answer_limit = std::chrono::seconds(30);  // to an answer's head
  Duration idle_limit = std::chrono::seconds(60);    // between two pieces of a body
};

struct RemoteFile {
  std::string path;
  uint64_t size = 0;
  std::string sha256;    // hex, of large files; or
  std::string git_sha1;  // hex, of "blob SIZE\0" and the bytes
};

class HubClient {
 public:
  // Errors: 400 "bad_url".
  static Result<HubClient> create(HubOptions options);

  struct Listing {
    std::string commit;
    std::vector<RemoteFile> files;
  };
  // Errors: 401, 403, 404 with what to do about them; 502 "bad_hub" for an answer that makes no
  // sense; net's own.
  Result<Listing> list(const std::string& repository) const;

  // Bytes of a file from `offset` on. `on_start(offset)` says where they really start (0 when the
  // server does not resume) before the first of them; false from either callback ends the download
  // with "cancelled".
  Status download(const std::string& repository, const std::string& commit, const std::string& path,
                  uint64_t offset, const std::function<bool(uint64_t)>& on_start,
                  const std::function<bool(std::string_view)>& on_bytes) const;

 private:
  HubClient(HubOptions options, net::Url endpoint)
      : options_(std::move(options)), endpoint_(std::move(endpoint)) {}

  struct Place {
    net::Url origin;
    std::string target;
  };
  Result<net::WholeResponse> get(const std::string& target, uint64_t offset,
                                 const std::function<bool(const net::ClientHead&)>& on_head,
                                 const std::function<bool(std::string_view)>& on_bytes) const;
  Result<Place> redirected(const Place& from, std::string_view location) const;
  Result<JsonValue> get_json(const std::string& target, const std::string& repository,
                             std::string* next) const;
  Error explain(int status, const std::string& repository, const std::string& what) const;

  HubOptions options_;
  net::Url endpoint_;
};

}  // namespace tandem::hub
