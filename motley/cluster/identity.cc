#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <system_error>

#include "motley/base/file.h"
#include "motley/cluster/security.h"

namespace motley::cluster {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using BigNumber = std::unique_ptr<BIGNUM, Deleter<BN_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Deleter<EVP_PKEY_CTX_free>>;

constexpr long kDaySeconds = 24 * 60 * 60;
constexpr int kValidDays = 3650;
constexpr std::string_view kNewIdentity =
    "remove key.pem and certificate.pem of the coordinator for a new identity: workers then need "
    "new tokens";

// OpenSSL keeps the errors of a thread until somebody asks, and the next user of TLS in this thread
// would take ours for its own.
struct ErrorsCleared {
  ErrorsCleared() = default;
  ~ErrorsCleared() { ERR_clear_error(); }
  ErrorsCleared(const ErrorsCleared&) = delete;
  ErrorsCleared& operator=(const ErrorsCleared&) = delete;
};

std::string Content(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return size > 0 ? std::string(data, static_cast<std::size_t>(size)) : std::string();
}

Bio Reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Without it OpenSSL would ask at the terminal, and wait.
int NoPassphrase(char*, int, int, void*) { return -1; }

Certificate ParseCertificate(const std::string& pem) {
  const Bio bio = Reader(pem);
  return Certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
}

Key ParseKey(const std::string& pem) {
  const Bio bio = Reader(pem);
  return Key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
}

std::string PemOf(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  return PEM_write_bio_X509(bio.get(), certificate) == 1 ? Content(bio.get()) : "";
}

std::string PemOf(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  const bool ok =
      PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1;
  return ok ? Content(bio.get()) : "";
}

std::string FingerprintOf(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  return i2d_X509_bio(bio.get(), certificate) == 1 ? base::Sha256(Content(bio.get())) : "";
}

std::string TextOf(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()));
  return ASN1_TIME_print(bio.get(), time) == 1 ? Content(bio.get()) : "an unreadable time";
}

bool AddExtension(X509* certificate, int nid, const std::string& value) {
  X509V3_CTX context{};
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetNames(X509* certificate) {
  const std::string name(kCertificateName);
  X509_NAME* subject = X509_get_subject_name(certificate);
  return X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                    reinterpret_cast<const unsigned char*>(name.data()),
                                    static_cast<int>(name.size()), -1, 0) == 1 &&
         X509_set_issuer_name(certificate, subject) == 1 &&
         AddExtension(certificate, NID_subject_alt_name, "DNS:" + name) &&
         // Whoever trusts it trusts this one server, and nothing that its key may sign.
         AddExtension(certificate, NID_basic_constraints, "critical,CA:FALSE") &&
         AddExtension(certificate, NID_key_usage, "critical,digitalSignature") &&
         AddExtension(certificate, NID_ext_key_usage, "serverAuth");
}

Certificate MakeCertificate(EVP_PKEY* key) {
  Certificate certificate(X509_new());
  const BigNumber serial(BN_new());
  const bool ok =
      certificate != nullptr && serial != nullptr &&
      X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
      BN_rand(serial.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get())) != nullptr &&
      // Clocks of workers may be behind.
      X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kDaySeconds) != nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kValidDays * kDaySeconds) != nullptr &&
      X509_set_pubkey(certificate.get(), key) == 1 && SetNames(certificate.get()) &&
      X509_sign(certificate.get(), key, EVP_sha256()) > 0;
  return ok ? std::move(certificate) : nullptr;
}

struct Files {
  explicit Files(const std::filesystem::path& folder)
      : key(folder / "key.pem"), certificate(folder / "certificate.pem") {}
  bool BothExist() const { return Exists(key) && Exists(certificate); }
  bool OneExists() const { return Exists(key) || Exists(certificate); }
  std::string Fix() const {
    return fmt::format(
        "put a copy of both files back, or remove '{}' and '{}' for a new identity: workers then "
        "need new tokens",
        key.string(), certificate.string());
  }
  static bool Exists(const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
  }
  const std::filesystem::path key, certificate;
};

base::Status Create(const Files& files) {
  auto made = MakeIdentity();
  if (!made.ok()) return std::move(made).status().In(files.key.string());
  MOTLEY_RETURN_IF_ERROR(WritePrivateFile(files.key, made->key_pem));
  base::Status status = WritePrivateFile(files.certificate, made->certificate_pem);
  std::error_code ignored;
  if (!status.ok()) std::filesystem::remove(files.key, ignored);
  return status;
}

// One file of two: the other one was lost.
base::Result<std::string> ReadHalf(const std::filesystem::path& half,
                                   const std::filesystem::path& other, const Files& files) {
  auto text = ReadPrivateFile(half);
  if (text.ok() || text.status().code() != base::Code::kNotFound) return text;
  return base::InvalidInput("{}: is not there, but {} is", half.string(), other.string())
      .WithFix(files.Fix());
}

// A damaged scalar still comes with its undamaged public half, which is all that comparing the key
// with the certificate would look at.
bool IsWhole(EVP_PKEY* key) {
  const KeyContext context(EVP_PKEY_CTX_new_from_pkey(nullptr, key, nullptr));
  return context != nullptr && EVP_PKEY_pairwise_check(context.get()) == 1;
}

base::Result<Identity> Load(const Files& files) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string key_text,
                          ReadHalf(files.key, files.certificate, files));
  MOTLEY_ASSIGN_OR_RETURN(const std::string certificate_text,
                          ReadHalf(files.certificate, files.key, files));
  const auto refuse = [&](const std::filesystem::path& file, std::string_view why) {
    return base::InvalidInput("{}: {}", file.string(), why).WithFix(files.Fix());
  };
  const Key key = ParseKey(key_text);
  if (key == nullptr) return refuse(files.key, "holds no private key (PEM, no passphrase)");
  if (!IsWhole(key.get())) return refuse(files.key, "is damaged");
  const Certificate certificate = ParseCertificate(certificate_text);
  if (certificate == nullptr) return refuse(files.certificate, "holds no certificate (PEM)");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return refuse(files.certificate, "does not belong to key.pem");
  }
  if (X509_verify(certificate.get(), key.get()) != 1) {
    return refuse(files.certificate, "is damaged, or not signed by its own key");
  }
  // Written anew, so that what stands around them in the files does not get any further.
  Identity identity{PemOf(key.get()), PemOf(certificate.get()), FingerprintOf(certificate.get())};
  base::Status usable = CheckUsable(identity.certificate_pem);
  if (!usable.ok()) return std::move(usable).In(files.certificate.string());
  return identity;
}

}  // namespace

base::Result<std::string> Fingerprint(const std::string& pem) {
  const ErrorsCleared cleared;
  const Certificate certificate = ParseCertificate(pem);
  if (certificate == nullptr) return base::InvalidInput("no certificate (PEM)");
  return FingerprintOf(certificate.get());
}

base::Status CheckUsable(const std::string& pem) {
  const ErrorsCleared cleared;
  const Certificate certificate = ParseCertificate(pem);
  if (certificate == nullptr) return base::InvalidInput("no certificate (PEM)");
  if (X509_check_host(certificate.get(), kCertificateName.data(), kCertificateName.size(), 0,
                      nullptr) != 1) {
    return base::InvalidInput("the certificate has another name than \"{}\"", kCertificateName)
        .WithFix(std::string(kNewIdentity));
  }
  const ASN1_TIME* begin = X509_get0_notBefore(certificate.get());
  const ASN1_TIME* end = X509_get0_notAfter(certificate.get());
  // 0 means that the time cannot be read.
  if (X509_cmp_current_time(begin) < 0 && X509_cmp_current_time(end) > 0) return {};
  return base::InvalidInput("the certificate is valid only from {} to {}", TextOf(begin),
                            TextOf(end))
      .WithFix(fmt::format("set the clock of this machine; if it is right, {}", kNewIdentity));
}

base::Result<Identity> MakeIdentity() {
  const ErrorsCleared cleared;
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  const Certificate certificate = key != nullptr ? MakeCertificate(key.get()) : nullptr;
  if (certificate == nullptr) {
    return base::Internal("OpenSSL cannot make a key and a certificate");
  }
  return Identity{PemOf(key.get()), PemOf(certificate.get()), FingerprintOf(certificate.get())};
}

base::Result<Identity> LoadOrCreateIdentity(const std::filesystem::path& folder) {
  const ErrorsCleared cleared;
  const Files files(folder);
  if (!files.BothExist()) {
    // Another process may be making them: it is asked again inside.
    MOTLEY_RETURN_IF_ERROR(WithFolderLocked(
        folder, [&] { return files.OneExists() ? base::Status() : Create(files); }));
  }
  return Load(files);
}

}  // namespace motley::cluster
