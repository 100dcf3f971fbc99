// TLS: a Stream over another one, with OpenSSL working on memory. For clients the server's
// certificate must be good and name the host; which authorities count is the system's choice, or
// that of SSL_CERT_FILE and SSL_CERT_DIR, and of trust_also(). A server's handshake happens inside
// of its first reads.
#include <algorithm>
#include <memory>
#include <utility>

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "net/stream.h"

namespace tandem::net {

namespace {

constexpr size_t kCipherPiece = 16UL << 10;
constexpr size_t kPlainPiece = 64UL << 10;  // taken at once from a writer

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

// Made once; null when OpenSSL cannot.
SSL_CTX* client_context() {
  static const std::unique_ptr<SSL_CTX, FreeContext> context = [] {
    std::unique_ptr<SSL_CTX, FreeContext> made(SSL_CTX_new(TLS_client_method()));
    if (!made) return made;
    SSL_CTX_set_min_proto_version(made.get(), TLS1_2_VERSION);
    SSL_CTX_set_verify(made.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_default_verify_paths(made.get());
    SSL_CTX_set_mode(made.get(),
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return made;
  }();
  return context.get();
}

// OpenSSL's oldest complaint on this thread, as a sentence's end.
std::string openssl_problem() {
  const char* const reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "unknown reason";
}

bool is_address(const std::string& host) {
  in6_addr ignored{};
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

class TlsStream final : public Stream {
 public:
  TlsStream(Reactor& reactor, std::unique_ptr<Stream> inner)
      : reactor_(reactor), inner_(std::move(inner)) {}

  Status open(const std::string& host) {
    TANDEM_CHECK(begin(client_context()));
    SSL_set_connect_state(ssl_.get());
    bool named = false;
    if (is_address(host)) {
      named = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str()) == 1;
    } else {
      named = SSL_set1_host(ssl_.get(), host.c_str()) == 1 &&
              SSL_set_tlsext_host_name(ssl_.get(), host.c_str()) == 1;
    }
    return named ? Status() : internal_error("OpenSSL does not take the host's name");
  }

  Status serve(SSL_CTX* context) {
    TANDEM_CHECK(begin(context));
    SSL_set_accept_state(ssl_.get());
    return {};
  }

  enum class Step { kDone, kRead, kWrite, kFailed };
  Step handshake() {
    while (true) {
      ERR_clear_error();
      const int outcome = SSL_do_handshake(ssl_.get());
      const int error = SSL_get_error(ssl_.get(), outcome);
      if (!flush()) return Step::kFailed;
      if (outcome == 1) return Step::kDone;
      if (!pending_.empty()) return Step::kWrite;
      if (error != SSL_ERROR_WANT_READ) return Step::kFailed;
      const IoResult got = fill();
      if (got.kind == IoResult::Kind::kWouldBlock) return Step::kRead;
      if (got.kind != IoResult::Kind::kDone) return Step::kFailed;
    }
  }

  std::string problem() const {
    const long verdict = SSL_get_verify_result(ssl_.get());
    if (verdict != X509_V_OK) {
      return std::string("the server's certificate is not good: ") +
             X509_verify_cert_error_string(verdict) + " (SSL_CERT_FILE names further authorities)";
    }
    const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
    return std::string("TLS: ") +
           (reason != nullptr ? reason : "the connection closed during the handshake");
  }

  IoResult try_read(char* into, size_t size) override {
    size_t have = 0;
    while (have < size) {
      ERR_clear_error();
      size_t step = 0;
      if (SSL_read_ex(ssl_.get(), into + have, size - have, &step) == 1) {
        have += step;
        continue;
      }
      const int error = SSL_get_error(ssl_.get(), 0);
      if (!flush()) return ended(have, IoResult::Kind::kFailed);
      if (error == SSL_ERROR_ZERO_RETURN) return ended(have, IoResult::Kind::kEnd);
      if (error != SSL_ERROR_WANT_READ) return ended(have, IoResult::Kind::kFailed);
      const IoResult got = fill();
      if (got.kind == IoResult::Kind::kDone) continue;
      // Without TLS's own goodbye an end may be a cut.
      const bool cut = got.kind != IoResult::Kind::kWouldBlock;
      return ended(have, cut ? IoResult::Kind::kFailed : IoResult::Kind::kWouldBlock);
    }
    return {IoResult::Kind::kDone, have};
  }

  IoResult try_write(const iovec* pieces, int count) override {
    if (!flush()) return {IoResult::Kind::kFailed, 0};
    if (!pending_.empty()) return {IoResult::Kind::kWouldBlock, 0};
    size_t taken = 0;
    for (int i = 0; i < count && taken < kPlainPiece; ++i) {
      const size_t piece = std::min(pieces[i].iov_len, kPlainPiece - taken);
      size_t step = 0;
      ERR_clear_error();
      if (piece > 0 && SSL_write_ex(ssl_.get(), pieces[i].iov_base, piece, &step) != 1)
        return {IoResult::Kind::kFailed, 0};
      taken += step;
      if (step < pieces[i].iov_len) break;
    }
    if (!flush()) return {IoResult::Kind::kFailed, 0};
    return {IoResult::Kind::kDone, taken};
  }

  void wait_readable(std::function<void()> action) override {
    if (SSL_pending(ssl_.get()) > 0 || BIO_ctrl_pending(in_) > 0)
      return reactor_.post(std::move(action));
    inner_->wait_readable(std::move(action));
  }
  void wait_writable(std::function<void()> action) override {
    inner_->wait_writable(std::move(action));
  }
  void shutdown_send() override {
    SSL_shutdown(ssl_.get());
    flush();
    inner_->shutdown_send();
  }
  void close(bool reset) override { inner_->close(reset); }
  std::string remote() const override { return inner_->remote(); }

 private:
  Status begin(SSL_CTX* context) {
    if (context != nullptr) ssl_.reset(SSL_new(context));
    if (!ssl_) return internal_error("OpenSSL cannot be used");
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_.get(), in_, out_);
    return {};
  }

  // What was read before the end counts; the end itself is found again by the next read.
  static IoResult ended(size_t have, IoResult::Kind kind) {
    return have > 0 ? IoResult{IoResult::Kind::kDone, have} : IoResult{kind, 0};
  }

  // Moves what OpenSSL wrote to the socket. False: the socket failed. What does not fit stays in
  // pending_ and goes out by itself.
  bool flush() {
    while (true) {
      if (pending_.empty()) {
        char piece[kCipherPiece];
        const int got = BIO_read(out_, piece, sizeof piece);
        if (got <= 0) return true;
        pending_.assign(piece, static_cast<size_t>(got));
      }
      const iovec vector{pending_.data(), pending_.size()};
      const IoResult put = inner_->try_write(&vector, 1);
      if (put.kind == IoResult::Kind::kWouldBlock) {
        flush_later();
        return true;
      }
      if (put.kind != IoResult::Kind::kDone) return false;
      pending_.erase(0, put.bytes);
    }
  }

  void flush_later() {
    if (flushing_) return;
    flushing_ = true;
    inner_->wait_writable([alive = std::weak_ptr<TlsStream*>(self_)] {
      const auto self = alive.lock();
      if (!self) return;
      (*self)->flushing_ = false;
      (*self)->flush();
    });
  }

  IoResult fill() {
    char piece[kCipherPiece];
    const IoResult got = inner_->try_read(piece, sizeof piece);
    if (got.kind == IoResult::Kind::kDone) BIO_write(in_, piece, static_cast<int>(got.bytes));
    return got;
  }

  Reactor& reactor_;
  std::unique_ptr<Stream> inner_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
  BIO* in_ = nullptr;  // both are ssl_'s
  BIO* out_ = nullptr;
  std::string pending_;  // of one piece
  bool flushing_ = false;
  std::shared_ptr<TlsStream*> self_ = std::make_shared<TlsStream*>(this);
};

class TlsConnect final : public std::enable_shared_from_this<TlsConnect> {
 public:
  TlsConnect(Reactor& reactor, std::string host, ConnectAction action)
      : reactor_(reactor),
        host_(std::move(host)),
        action_(std::move(action)),
        deadline_(reactor, [this] {
          finish(make_error(504, "connect_timeout", "the connection took too long"));
        }) {}

  void start(uint16_t port, Duration limit) {
    deadline_.arm(limit);
    cancel_ = connect_tcp(reactor_, host_, port, limit,
                          [self = shared_from_this()](Result<std::unique_ptr<Stream>> made) {
                            self->connected(std::move(made));
                          });
  }

  void cancel() {
    if (cancel_) std::exchange(cancel_, nullptr)();
    // Never inside this call, as connect_tcp() does it.
    reactor_.post([self = shared_from_this()] {
      self->finish(make_error(499, "cancelled", "the call was cancelled"));
    });
  }

 private:
  void connected(Result<std::unique_ptr<Stream>> made) {
    cancel_ = nullptr;
    if (!action_) return;
    if (!made) return finish(tl::unexpected(std::move(made).error()));
    stream_ = std::make_unique<TlsStream>(reactor_, std::move(*made));
    if (Status opened = stream_->open(host_); !opened)
      return finish(tl::unexpected(opened.error()));
    step();
  }

  void step() {
    if (!action_) return;
    auto again = [self = shared_from_this()] { self->step(); };
    switch (stream_->handshake()) {
      case TlsStream::Step::kDone:
        return finish(std::unique_ptr<Stream>(std::move(stream_)));
      case TlsStream::Step::kRead:
        return stream_->wait_readable(std::move(again));
      case TlsStream::Step::kWrite:
        return stream_->wait_writable(std::move(again));
      case TlsStream::Step::kFailed:
        return finish(make_error(502, "tls_failed", stream_->problem()));
    }
  }

  void finish(Result<std::unique_ptr<Stream>> result) {
    deadline_.disarm();
    if (!action_) return;
    if (stream_ && !result) stream_->close(false);
    std::exchange(action_, nullptr)(std::move(result));
  }

  Reactor& reactor_;
  std::string host_;
  ConnectAction action_;
  Deadline deadline_;
  std::function<void()> cancel_;
  std::unique_ptr<TlsStream> stream_;
};

}  // namespace

std::function<void()> connect_tls(Reactor& reactor, const std::string& host, uint16_t port,
                                  Duration limit, ConnectAction action) {
  auto connect = std::make_shared<TlsConnect>(reactor, host, std::move(action));
  connect->start(port, limit);
  return [weak = std::weak_ptr<TlsConnect>(connect)] {
    if (const auto alive = weak.lock()) alive->cancel();
  };
}

Status trust_also(const std::string& file) {
  if (client_context() != nullptr &&
      SSL_CTX_load_verify_locations(client_context(), file.c_str(), nullptr) == 1)
    return {};
  return make_error(400, "bad_certificate",
                    "no certificates can be read from '" + file + "': " + openssl_problem());
}

struct TlsIdentity::Impl {
  std::unique_ptr<SSL_CTX, FreeContext> context;
};

TlsIdentity::TlsIdentity(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsIdentity::~TlsIdentity() = default;

Result<std::shared_ptr<const TlsIdentity>> TlsIdentity::load(const std::string& certificate_file,
                                                             const std::string& key_file) {
  std::unique_ptr<SSL_CTX, FreeContext> made(SSL_CTX_new(TLS_server_method()));
  if (!made) return internal_error("OpenSSL cannot be used");
  SSL_CTX_set_min_proto_version(made.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(made.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const auto bad = [](const std::string& file) {
    return make_error(400, "bad_certificate",
                      "'" + file + "' cannot be used for TLS: " + openssl_problem());
  };
  if (SSL_CTX_use_certificate_chain_file(made.get(), certificate_file.c_str()) != 1)
    return bad(certificate_file);
  if (SSL_CTX_use_PrivateKey_file(made.get(), key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    return bad(key_file);
  if (SSL_CTX_check_private_key(made.get()) != 1) return bad(key_file);
  auto impl = std::make_unique<Impl>();
  impl->context = std::move(made);
  return std::shared_ptr<const TlsIdentity>(new TlsIdentity(std::move(impl)));
}

std::unique_ptr<Stream> TlsIdentity::serve(Reactor& reactor, std::unique_ptr<Stream> stream) const {
  auto made = std::make_unique<TlsStream>(reactor, std::move(stream));
  if (!made->serve(impl_->context.get())) return nullptr;
  return made;
}

}  // namespace tandem::net
