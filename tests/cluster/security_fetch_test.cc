#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "motley/base/clock.h"
#include "motley/base/file.h"
#include "motley/cluster/security.h"
#include "tests/cluster/security_fixture.h"

namespace motley::cluster {
namespace {

// Listens on a port of this machine and serves one connection after another in a thread, until it
// is destroyed.
class Server {
 public:
  // `serve` must return soon after `stop` has become true.
  using Serve = std::function<void(int fd, const std::atomic<bool>& stop)>;
  explicit Server(Serve serve) : serve_(std::move(serve)), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(fd_, generic, size), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
    EXPECT_EQ(::getsockname(fd_, generic, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~Server() {
    stop_ = true;
    thread_.join();
    ::close(fd_);
  }
  std::string Address(const char* host = "127.0.0.1") const {
    return fmt::format("{}:{}", host, port_);
  }

 private:
  void Run() {
    // For this thread only: the client must survive a peer that hangs up by its own means.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    while (!stop_) {
      pollfd poll{.fd = fd_, .events = POLLIN, .revents = 0};
      if (::poll(&poll, 1, 10) <= 0) continue;
      const int fd = ::accept(fd_, nullptr, nullptr);
      if (fd < 0) continue;
      const timeval limit{.tv_sec = 5, .tv_usec = 0};
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
      serve_(fd, stop_);
      ::close(fd);
    }
  }

  const Serve serve_;
  const int fd_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void Sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }

void Silence(int, const std::atomic<bool>& stop) {
  while (!stop) Sleep();
}

// Chooses HTTP/2 if it is offered.
int ChooseHttp2(SSL*, const unsigned char** chosen, unsigned char* size,
                const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kWanted[] = {2, 'h', '2'};
  unsigned char* found = nullptr;
  const int outcome =
      SSL_select_next_proto(&found, size, kWanted, sizeof(kWanted), offered, offered_size);
  *chosen = found;
  return outcome == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

// A server's end of TLS on `fd`, with at most the TLS of `version`.
struct TlsEnd {
  TlsEnd(const Identity& identity, int version, int fd)
      : context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free), tls(nullptr, SSL_free) {
    const auto reader = [](const std::string& pem) {
      return std::unique_ptr<BIO, int (*)(BIO*)>(
          BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
    };
    const std::unique_ptr<X509, void (*)(X509*)> certificate(
        PEM_read_bio_X509(reader(identity.certificate_pem).get(), nullptr, nullptr, nullptr),
        X509_free);
    const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(
        PEM_read_bio_PrivateKey(reader(identity.key_pem).get(), nullptr, nullptr, nullptr),
        EVP_PKEY_free);
    EXPECT_EQ(SSL_CTX_set_max_proto_version(context.get(), version), 1);
    EXPECT_EQ(SSL_CTX_use_certificate(context.get(), certificate.get()), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context.get(), key.get()), 1);
    SSL_CTX_set_alpn_select_cb(context.get(), ChooseHttp2, nullptr);
    tls.reset(SSL_new(context.get()));
    SSL_set_fd(tls.get(), fd);
  }
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context;
  std::unique_ptr<SSL, void (*)(SSL*)> tls;
};

Server::Serve Tls(const Identity& identity, int version = TLS1_3_VERSION) {
  return [identity, version](int fd, const std::atomic<bool>&) {
    const TlsEnd end(identity, version, fd);
    if (SSL_accept(end.tls.get()) != 1) return;
    const unsigned char* protocol = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(end.tls.get(), &protocol, &size);
    EXPECT_EQ(std::string(protocol, protocol + size), "h2") << "gRPC's servers would hang up";
    SSL_shutdown(end.tls.get());
  };
}

void HangUpRudely(int fd) {
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  ::shutdown(fd, SHUT_WR);
}

class FetchCertificateTest : public SecurityTest {
 protected:
  // The refusal, which must come long before anything else gives up, after a deadline of 0.3 s.
  base::Status Refusal(const std::string& address) {
    const base::RealClock clock;
    const double begin = clock.Now();
    const base::Status status =
        FetchCertificate(address, base::Sha256("certificate"), 0.3).status();
    EXPECT_LT(clock.Now() - begin, 20.0);
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(Contains(status.message(), address)) << status.message();
    EXPECT_NE(status.fix(), "") << status.message();
    EXPECT_EQ(ERR_peek_error(), 0U) << "left for the next user of OpenSSL in this thread";
    return status;
  }
};

TEST_F(FetchCertificateTest, BringsTheCertificateThatTheTokenNames) {
  const auto identity = LoadOrCreateIdentity(folder_);
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const Server server(Tls(*identity, version));
    for (const char* host : {"127.0.0.1", "localhost"}) {
      const auto pem = FetchCertificate(server.Address(host), identity->fingerprint, 5.0);
      ASSERT_TRUE(pem.ok()) << pem.status().ToString();
      EXPECT_EQ(*pem, identity->certificate_pem);
    }
  }
}

// What gRPC does with it: the certificate is the only root, and the name is kCertificateName.
TEST_F(FetchCertificateTest, WhatItBringsVerifiesTheServer) {
  const auto identity = LoadOrCreateIdentity(folder_);
  const std::string& pem = identity->certificate_pem;
  const std::unique_ptr<BIO, int (*)(BIO*)> in(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(
      PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr), X509_free);
  const std::unique_ptr<X509_STORE, void (*)(X509_STORE*)> store(X509_STORE_new(), X509_STORE_free);
  ASSERT_EQ(X509_STORE_add_cert(store.get(), certificate.get()), 1);
  const std::unique_ptr<X509_STORE_CTX, void (*)(X509_STORE_CTX*)> context(X509_STORE_CTX_new(),
                                                                           X509_STORE_CTX_free);
  ASSERT_EQ(X509_STORE_CTX_init(context.get(), store.get(), certificate.get(), nullptr), 1);
  X509_STORE_CTX_set_purpose(context.get(), X509_PURPOSE_SSL_SERVER);
  X509_VERIFY_PARAM_set1_host(X509_STORE_CTX_get0_param(context.get()), kCertificateName.data(),
                              kCertificateName.size());
  EXPECT_EQ(X509_verify_cert(context.get()), 1)
      << X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
}

TEST_F(FetchCertificateTest, RefusesAnotherCertificate) {
  const auto identity = LoadOrCreateIdentity(folder_);
  const Server server(Tls(*identity));
  for (const std::string& fingerprint :
       {std::string(), identity->fingerprint.substr(0, 63), base::Sha256("certificate")}) {
    const base::Status status = FetchCertificate(server.Address(), fingerprint, 5.0).status();
    EXPECT_EQ(status.code(), base::Code::kInvalidInput);
    EXPECT_TRUE(Contains(status.message(), identity->fingerprint)) << status.message();
    EXPECT_TRUE(Contains(status.message(), server.Address())) << status.message();
    EXPECT_TRUE(Contains(status.fix(), "token")) << status.fix();
  }
}

TEST_F(FetchCertificateTest, SaysWhenTheClockAndTheCertificateDoNotAgree) {
  const Identity identity = MakeIdentity({.begins_seconds = 3600, .ends_seconds = 7200});
  const Server server(Tls(identity));
  const base::Status status =
      FetchCertificate(server.Address(), identity.fingerprint, 5.0).status();
  EXPECT_TRUE(Contains(status.message(), server.Address() + ": the certificate is valid only from"))
      << status.message();
  EXPECT_TRUE(Contains(status.fix(), "set the clock"));
}

TEST_F(FetchCertificateTest, RefusesAServerOfPlainText) {
  const Server server([](int fd, const std::atomic<bool>& stop) {
    constexpr std::string_view kAnswer = "HTTP/1.1 400 Bad Request\r\n\r\n";
    EXPECT_GT(::send(fd, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL), 0);
    Silence(fd, stop);
  });
  const base::Status status = Refusal(server.Address());
  EXPECT_EQ(status.code(), base::Code::kInvalidInput);
  EXPECT_TRUE(Contains(status.fix(), "without TLS")) << status.fix();
}

TEST_F(FetchCertificateTest, RefusesASilentServerAtTheDeadline) {
  const Server server(Silence);
  const base::Status status = Refusal(server.Address());
  EXPECT_EQ(status.code(), base::Code::kUnavailable);
  EXPECT_TRUE(Contains(status.message(), "no answer within 0.3 s")) << status.message();
}

// Every byte ends one wait; the deadline is for all of them together.
TEST_F(FetchCertificateTest, RefusesAServerThatDripsAtTheDeadline) {
  const Server server([](int fd, const std::atomic<bool>& stop) {
    const std::string start_of_a_record = {22, 3, 3, 0x3f, 0, 2, 0, 0x3e};
    for (std::size_t i = 0; !stop; ++i) {
      const char byte = i < start_of_a_record.size() ? start_of_a_record[i] : '\0';
      ::send(fd, &byte, 1, MSG_NOSIGNAL);
      Sleep();
    }
  });
  EXPECT_TRUE(Contains(Refusal(server.Address()).message(), "no answer within 0.3 s"));
}

TEST_F(FetchCertificateTest, SurvivesAServerThatHangsUp) {
  const Server server([](int fd, const std::atomic<bool>&) { HangUpRudely(fd); });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Refusal(server.Address()).code(), base::Code::kUnavailable);
  }
}

// What is then sent to it raises SIGPIPE, unless that is prevented. How far we get is a race.
TEST_F(FetchCertificateTest, SurvivesAServerThatHangsUpInTheMiddle) {
  const auto identity = LoadOrCreateIdentity(folder_);
  const Server server([&](int fd, const std::atomic<bool>&) {
    const TlsEnd end(*identity, TLS1_3_VERSION, fd);
    pollfd poll{.fd = fd, .events = POLLIN, .revents = 0};
    ::poll(&poll, 1, 5000);
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    SSL_accept(end.tls.get());
    HangUpRudely(fd);
  });
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(Refusal(server.Address()).ok());
}

TEST_F(FetchCertificateTest, SurvivesAFloodOfNoise) {
  const Server server([](int fd, const std::atomic<bool>& stop) {
    const std::string noise(1 << 16, '\x16');
    while (!stop && ::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  EXPECT_FALSE(Refusal(server.Address()).ok());
}

TEST_F(FetchCertificateTest, SaysWhenNobodyListens) {
  std::string address;
  {
    const Server server(Silence);
    address = server.Address();
  }
  const base::Status status = Refusal(address);
  EXPECT_EQ(status.code(), base::Code::kUnavailable);
  EXPECT_TRUE(Contains(status.message(), "refused")) << status.message();
}

TEST_F(FetchCertificateTest, RefusesWhatIsNoAddress) {
  for (const char* address : {"", ":", "host", "host:", ":7400", "host:0", "host:65536", "host:-1",
                              "host:74x", "::1:7400", "[]:7400", "a b:7400", "a\nb:7400"}) {
    const base::Status status = Refusal(address);
    EXPECT_EQ(status.code(), base::Code::kInvalidInput) << address;
    EXPECT_TRUE(Contains(status.fix(), "HOST:PORT")) << address;
  }
  EXPECT_EQ(Refusal(std::string(300, 'a') + ":7400").code(), base::Code::kInvalidInput);
}

TEST_F(FetchCertificateTest, ADeadlineThatIsOverOrNoNumberIsNotWaitedFor) {
  const Server server(Silence);
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    for (const char* host : {"127.0.0.1", "localhost"}) {
      EXPECT_EQ(FetchCertificate(server.Address(host), "", seconds).status().code(),
                base::Code::kUnavailable);
    }
  }
}

}  // namespace
}  // namespace motley::cluster
