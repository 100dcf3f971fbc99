// What the edge costs: one request over loopback (server and client on the same thread, so both
// halves), one streamed chunk, parsing a head, framing a stream.
#include <benchmark/benchmark.h>

#include "base/reply_text.h"
#include "net/http_client.h"
#include "net/http_parse.h"
#include "net/http_server.h"
#include "net/sse.h"

namespace tandem::net {
namespace {

void bench_request(benchmark::State& state) {
  Reactor reactor;
  const std::string answer(static_cast<size_t>(state.range(0)), 'a');
  HttpServer server(reactor, {},
                    [&](HttpRequest&, HttpResponder& responder) -> asio::awaitable<void> {
                      co_await responder.send(200, {{"Content-Type", "application/json"}}, answer);
                    });
  ClientRequest request;
  request.method = "POST";
  request.host = "127.0.0.1";
  request.port = server.listen().value();
  request.body = answer;
  HttpClient client(reactor);
  run_until_done(reactor,
                 [](HttpClient& from, const ClientRequest& ask,
                    benchmark::State& loop) -> asio::awaitable<void> {
                   for (auto _ : loop) {
                     auto response = co_await fetch(from, ask);
                     if (!response || response->body.size() != ask.body.size())
                       loop.SkipWithError("failed");
                   }
                 }(client, request, state));
}
BENCHMARK(bench_request)
    ->Arg(200)
    ->Arg(16 << 10)
    ->Arg(1 << 20)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

void bench_stream_chunk(benchmark::State& state) {
  Reactor reactor;
  bool more = true;
  HttpServer server(reactor, {},
                    [&](HttpRequest&, HttpResponder& responder) -> asio::awaitable<void> {
                      const std::string chunk = sse_frame(std::string(250, 'a'));
                      co_await responder.begin_stream(200, {});
                      while (more && co_await responder.write(chunk))
                        co_await reactor.sleep(Duration(0));
                      co_await responder.finish();
                    });
  ClientRequest request;
  request.host = "127.0.0.1";
  request.port = server.listen().value();
  HttpClient client(reactor);
  run_until_done(reactor,
                 [](HttpClient& from, const ClientRequest& ask, benchmark::State& loop,
                    bool& go) -> asio::awaitable<void> {
                   const auto call = from.call(ask);
                   co_await call->head();
                   size_t bytes = 0;
                   for (auto _ : loop) {
                     while (bytes < 258) bytes += (co_await call->read_some())->size();
                     bytes -= 258;
                   }
                   go = false;
                   call->cancel();
                 }(client, request, state, more));
}
BENCHMARK(bench_stream_chunk)->UseRealTime();

void bench_parse_head(benchmark::State& state) {
  const std::string text =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:8000\r\nContent-Type: "
      "application/json\r\nAuthorization: Bearer abc\r\n"
      "User-Agent: bench\r\nAccept: */*\r\nX-Session-Id: 1\r\nContent-Length: 0\r\n\r\n";
  MessageParser parser(MessageParser::Kind::kRequest, {});
  for (auto _ : state) {
    size_t at = 0;
    while (!parser.complete()) at += parser.feed(std::string_view(text).substr(at));
    parser.reset();
  }
}
BENCHMARK(bench_parse_head);

void bench_sse_frames(benchmark::State& state) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += sse_frame(std::string(250, 'a'));
  for (auto _ : state) {
    SseFramer framer;
    benchmark::DoNotOptimize(framer.feed(text));
    while (auto frame = framer.next()) benchmark::DoNotOptimize(frame->data.data());
  }
  state.SetItemsProcessed(state.iterations() * 100);
}
BENCHMARK(bench_sse_frames);

}  // namespace
}  // namespace tandem::net
