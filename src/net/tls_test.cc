// TLS on both sides: the server shows a certificate that the test makes for itself.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include "net/http_client.h"
#include "net/http_server.h"
#include "net/stream.h"

namespace tandem::net {
namespace {

using namespace std::chrono_literals;

struct Files {
  std::string certificate = testing::TempDir() + "tandem_tls_certificate.pem";
  std::string key = testing::TempDir() + "tandem_tls_key.pem";
  Files() {
    EVP_PKEY* const pair = EVP_RSA_gen(2048);
    X509* const made = X509_new();
    X509_set_version(made, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
    X509_gmtime_adj(X509_getm_notBefore(made), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made), 3600);
    X509_set_pubkey(made, pair);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("tandem test"), -1, -1, 0);
    X509_set_issuer_name(made, X509_get_subject_name(made));
    X509_EXTENSION* const names =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(made, names, -1);
    X509_sign(made, pair, EVP_sha256());
    FILE* file = std::fopen(certificate.c_str(), "wb");
    PEM_write_X509(file, made);
    std::fclose(file);
    file = std::fopen(key.c_str(), "wb");
    PEM_write_PrivateKey(file, pair, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
    X509_EXTENSION_free(names);
    X509_free(made);
    EVP_PKEY_free(pair);
  }
};

asio::awaitable<void> echo(HttpRequest& request, HttpResponder& responder) {
  co_await responder.send(200, {}, request.body);
}

TEST(Tls, ServerAndClientSpeakAndThePoolKeepsTheConnection) {
  const Files files;
  Reactor reactor;
  HttpServer server(reactor, {.tls_certificate = files.certificate, .tls_key = files.key}, echo);
  const uint16_t port = server.listen().value();
  HttpClient client(reactor);
  run_until_done(reactor, [&]() -> asio::awaitable<void> {
    ClientRequest request;
    request.method = "POST";
    request.host = "127.0.0.1";
    request.port = port;
    request.tls = true;
    request.body = "hello";
    Result<WholeResponse> refused = co_await fetch(client, request, {2s, 2s, 2s});
    EXPECT_FALSE(refused) << "nobody vouches for the certificate yet";
    if (!refused) EXPECT_EQ(refused.error().code, "tls_failed");
    EXPECT_TRUE(trust_also(files.certificate));
    request.body = std::string(3UL << 20, 'x');
    for (int i = 0; i < 2; ++i) {
      Result<WholeResponse> answer = co_await fetch(client, request, {2s, 5s, 5s});
      EXPECT_TRUE(answer) << answer.error().message;
      if (answer) EXPECT_EQ(answer->body.size(), 3UL << 20);
      EXPECT_EQ(client.idle_connections(), 1U);
    }
    // A client without TLS gets nothing, and the server lives on.
    request.tls = false;
    EXPECT_FALSE(co_await fetch(client, request, {2s, 2s, 2s}));
    request.tls = true;
    EXPECT_TRUE(co_await fetch(client, request, {2s, 5s, 5s}));
  }());
}

TEST(Tls, BadFilesAreNamed) {
  EXPECT_EQ(trust_also("/nowhere.pem").error().code, "bad_certificate");
  const auto identity = TlsIdentity::load("/nowhere.pem", "/nowhere.key");
  ASSERT_FALSE(identity);
  EXPECT_NE(identity.error().message.find("/nowhere.pem"), std::string::npos);
}

TEST(HttpClientPool, WarmOpensConnectionsAheadOfRequests) {
  Reactor reactor;
  HttpServer server(reactor, {}, echo);
  const uint16_t port = server.listen().value();
  HttpClient client(reactor);
  run_until_done(reactor, [&]() -> asio::awaitable<void> {
    const Url url = parse_url("http://127.0.0.1:" + std::to_string(port)).value();
    client.warm(url, 3);
    for (int i = 0; i < 100 && client.idle_connections() < 3; ++i) co_await reactor.sleep(10ms);
    EXPECT_EQ(client.idle_connections(), 3U);
    EXPECT_EQ(server.connections(), 3U);
    client.warm(url, 3);
    co_await reactor.sleep(50ms);
    EXPECT_EQ(client.idle_connections(), 3U);
    client.drop_idle("127.0.0.1", port);
    client.warm(*parse_url("http://127.0.0.1:1"), 2);
    co_await reactor.sleep(50ms);
    EXPECT_EQ(client.idle_connections(), 0U);
  }());
}

}  // namespace
}  // namespace tandem::net
