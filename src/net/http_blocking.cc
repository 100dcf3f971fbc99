#include <utility>

#include "net/http_client.h"

namespace tandem::net {

namespace {

asio::awaitable<void> run_request(HttpClient& client, const ClientRequest& request,
                                  const ClientTimeouts& timeouts,
                                  const std::function<void(const ClientHead&)>& on_head,
                                  const std::function<bool(std::string_view)>& on_body,
                                  Result<WholeResponse>& result) {
  const auto call = client.call(request, timeouts);
  Result<ClientHead> head = co_await call->head();
  if (!head) {
    result = tl::unexpected(std::move(head).error());
    co_return;
  }
  if (on_head) on_head(*head);
  WholeResponse whole{head->status, std::move(head->headers), {}};
  while (true) {
    Result<std::string> bytes = co_await call->read_some();
    if (!bytes) {
      result = tl::unexpected(std::move(bytes).error());
      co_return;
    }
    if (bytes->empty()) break;
    if (!on_body) {
      whole.body += *bytes;
    } else if (!on_body(*bytes)) {
      call->cancel();
      result = make_error(499, "cancelled", "the call was cancelled");
      co_return;
    }
  }
  result = std::move(whole);
}

}  // namespace

Result<WholeResponse> blocking_request(const ClientRequest& request, const ClientTimeouts& timeouts,
                                       const std::function<void(const ClientHead&)>& on_head,
                                       const std::function<bool(std::string_view)>& on_body) {
  Reactor reactor;
  HttpClient client(reactor);
  Result<WholeResponse> result = internal_error("the request did not run");
  run_until_done(reactor, run_request(client, request, timeouts, on_head, on_body, result));
  return result;
}

}  // namespace tandem::net
