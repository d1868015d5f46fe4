// What the tests of identities, tokens and certificates share.
#ifndef MOTLEY_TESTS_CLUSTER_SECURITY_FIXTURE_H_
#define MOTLEY_TESTS_CLUSTER_SECURITY_FIXTURE_H_

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "motley/cluster/security.h"

namespace motley::cluster {

inline bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// A folder of its own for each test, which is not there at first.
class SecurityTest : public testing::Test {
 protected:
  SecurityTest()
      : folder_(std::filesystem::path(testing::TempDir()) / "security_test" /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_.parent_path());
  }
  ~SecurityTest() override { std::filesystem::remove_all(folder_); }
  const std::filesystem::path folder_;
};

struct CertificateOptions {
  const char* name = "motley";
  long begins_seconds = -60, ends_seconds = 3600;  // from now
};

// Self-signed, as a pair that LoadOrCreateIdentity would not have made.
inline Identity MakeIdentity(const CertificateOptions& options) {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(
      EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
  X509* x509 = certificate.get();
  X509_gmtime_adj(X509_getm_notBefore(x509), options.begins_seconds);
  X509_gmtime_adj(X509_getm_notAfter(x509), options.ends_seconds);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(options.name), -1, -1, 0);
  X509_set_issuer_name(x509, X509_get_subject_name(x509));
  X509_set_pubkey(x509, key.get());
  X509_sign(x509, key.get(), EVP_sha256());
  const std::unique_ptr<BIO, int (*)(BIO*)> out(BIO_new(BIO_s_mem()), BIO_free);
  Identity identity;
  std::string text(4096, '\0');
  PEM_write_bio_PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  identity.key_pem =
      text.substr(0, static_cast<std::size_t>(BIO_read(out.get(), text.data(), 4096)));
  PEM_write_bio_X509(out.get(), x509);
  identity.certificate_pem =
      text.substr(0, static_cast<std::size_t>(BIO_read(out.get(), text.data(), 4096)));
  identity.fingerprint = *Fingerprint(identity.certificate_pem);
  return identity;
}

}  // namespace motley::cluster

#endif  // MOTLEY_TESTS_CLUSTER_SECURITY_FIXTURE_H_
