#include "motley/cluster/security.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/file.h"
#include "tests/cluster/security_fixture.h"

namespace motley::cluster {
namespace {

namespace fs = std::filesystem;

int Mode(const fs::path& path) { return static_cast<int>(fs::status(path).permissions()); }

void Write(const fs::path& path, const std::string& content) {
  fs::remove(path);  // the file system would sync a file that is overwritten, which takes long
  std::ofstream(path) << content;
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
}

class IdentityTest : public SecurityTest {
 protected:
  // What loading says after `file` was replaced by `content`.
  base::Status AfterReplacing(const char* file, const std::string& content) {
    Write(folder_ / file, content);
    return LoadOrCreateIdentity(folder_).status();
  }
};

TEST_F(IdentityTest, IsTheSameWhenLoadedAgain) {
  const auto made = LoadOrCreateIdentity(folder_);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const auto loaded = LoadOrCreateIdentity(folder_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->key_pem, made->key_pem);
  EXPECT_EQ(loaded->certificate_pem, made->certificate_pem);
  EXPECT_EQ(loaded->fingerprint, made->fingerprint);
  EXPECT_EQ(made->fingerprint.size(), 64U);
  EXPECT_EQ(*Fingerprint(made->certificate_pem), made->fingerprint);
}

TEST_F(IdentityTest, IsAnotherInAnotherFolder) {
  EXPECT_NE(LoadOrCreateIdentity(folder_ / "a")->fingerprint,
            LoadOrCreateIdentity(folder_ / "b")->fingerprint);
}

TEST_F(IdentityTest, IsOneWhenManyMakeItAtOnce) {
  std::vector<std::string> seen(8);
  std::vector<std::thread> threads;
  for (std::string& fingerprint : seen) {
    threads.emplace_back([&] { fingerprint = LoadOrCreateIdentity(folder_)->fingerprint; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 1U);
}

TEST_F(IdentityTest, BelongsToItsOwnerOnly) {
  ASSERT_TRUE(LoadOrCreateIdentity(folder_ / "keys/").ok());
  EXPECT_EQ(Mode(folder_ / "keys"), 0700);
  for (const auto& entry : fs::directory_iterator(folder_ / "keys")) {
    EXPECT_EQ(Mode(entry.path()), 0600) << entry.path();
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

TEST_F(IdentityTest, RefusesAKeyThatOthersMayRead) {
  ASSERT_TRUE(LoadOrCreateIdentity(folder_).ok());
  for (const mode_t mode : {0640U, 0604U, 0660U}) {
    ASSERT_EQ(::chmod((folder_ / "key.pem").c_str(), mode), 0);
    const base::Status status = LoadOrCreateIdentity(folder_).status();
    EXPECT_EQ(status.code(), base::Code::kInvalidInput);
    EXPECT_TRUE(Contains(status.message(), "key.pem")) << status.message();
    EXPECT_TRUE(Contains(status.fix(), "chmod 600")) << status.fix();
  }
  ASSERT_EQ(::chmod((folder_ / "key.pem").c_str(), 0600), 0);
  EXPECT_TRUE(LoadOrCreateIdentity(folder_).ok());
}

TEST_F(IdentityTest, RefusesAFolderThatOthersMayWriteTo) {
  for (const bool filled : {false, true}) {
    if (filled) {
      ASSERT_TRUE(LoadOrCreateIdentity(folder_).ok());
    } else {
      fs::create_directory(folder_);
    }
    ASSERT_EQ(::chmod(folder_.c_str(), 0770), 0);
    const base::Status status = LoadOrCreateIdentity(folder_).status();
    EXPECT_EQ(status.code(), base::Code::kInvalidInput);
    EXPECT_TRUE(Contains(status.fix(), "chmod go-w")) << status.fix();
    EXPECT_EQ(fs::exists(folder_ / "key.pem"), filled) << "nothing was written to it";
    ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  }
}

TEST_F(IdentityTest, RefusesHalfOfItAndLeavesTheOtherHalf) {
  for (const char* lost : {"key.pem", "certificate.pem"}) {
    ASSERT_TRUE(LoadOrCreateIdentity(folder_).ok());
    fs::remove(folder_ / lost);
    const base::Status status = LoadOrCreateIdentity(folder_).status();
    EXPECT_EQ(status.code(), base::Code::kInvalidInput);
    EXPECT_TRUE(Contains(status.message(), std::string(lost) + ": is not there"));
    EXPECT_TRUE(Contains(status.fix(), "remove"));
    EXPECT_FALSE(fs::exists(folder_ / lost));
    fs::remove(folder_ / "key.pem");
    fs::remove(folder_ / "certificate.pem");
  }
}

TEST_F(IdentityTest, RefusesWhatIsNoPem) {
  for (const char* file : {"key.pem", "certificate.pem"}) {
    ASSERT_TRUE(LoadOrCreateIdentity(folder_).ok());
    const std::string good = *base::ReadFile(folder_ / file);
    for (const std::string& bad : {std::string(), std::string("hello\n"), good.substr(0, 100),
                                   std::string(1 << 20, '-'), std::string(100, '\0')}) {
      const base::Status status = AfterReplacing(file, bad);
      EXPECT_EQ(status.code(), base::Code::kInvalidInput);
      EXPECT_TRUE(Contains(status.message(), file)) << status.message();
      EXPECT_TRUE(Contains(status.fix(), "remove")) << status.fix();
    }
    EXPECT_TRUE(AfterReplacing(file, good).ok());
  }
  EXPECT_EQ(ERR_peek_error(), 0U) << "left for the next user of OpenSSL in this thread";
}

// A few characters do not matter, such as those of a version number that OpenSSL does not look at.
TEST_F(IdentityTest, ADamagedCharacterIsRefusedUnlessItChangesNothing) {
  const auto made = LoadOrCreateIdentity(folder_);
  ASSERT_TRUE(made.ok());
  for (const char* file : {"key.pem", "certificate.pem"}) {
    const std::string good = *base::ReadFile(folder_ / file);
    int refused = 0;
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = bad[i] == 'x' ? 'y' : 'x';
      Write(folder_ / file, bad);
      const auto loaded = LoadOrCreateIdentity(folder_);
      refused += loaded.ok() ? 0 : 1;
      if (!loaded.ok()) continue;
      EXPECT_EQ(loaded->fingerprint, made->fingerprint) << i;
    }
    EXPECT_GT(refused, static_cast<int>(good.size() * 9 / 10)) << file;
    Write(folder_ / file, good);
  }
}

TEST_F(IdentityTest, RefusesTheCertificateOfAnotherKey) {
  ASSERT_TRUE(LoadOrCreateIdentity(folder_).ok());
  const auto other = LoadOrCreateIdentity(folder_ / "other");
  const base::Status status = AfterReplacing("certificate.pem", other->certificate_pem);
  EXPECT_TRUE(Contains(status.message(), "does not belong to key.pem")) << status.message();
}

// `openssl ec -aes256`: without a terminal it must not wait for a passphrase.
TEST_F(IdentityTest, RefusesAKeyWithAPassphrase) {
  const auto made = LoadOrCreateIdentity(folder_);
  const std::unique_ptr<BIO, int (*)(BIO*)> in(
      BIO_new_mem_buf(made->key_pem.data(), static_cast<int>(made->key_pem.size())), BIO_free);
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(
      PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  const std::unique_ptr<BIO, int (*)(BIO*)> out(BIO_new(BIO_s_mem()), BIO_free);
  ASSERT_EQ(PEM_write_bio_PKCS8PrivateKey(out.get(), key.get(), EVP_aes_256_cbc(), "word", 4,
                                          nullptr, nullptr),
            1);
  std::string text(4096, '\0');
  const int size = BIO_read(out.get(), text.data(), 4096);
  ASSERT_GT(size, 0);
  text.resize(static_cast<std::size_t>(size));
  EXPECT_TRUE(Contains(AfterReplacing("key.pem", text).message(), "no passphrase"));
}

TEST_F(IdentityTest, RefusesACertificateThatGrpcWouldRefuse) {
  const struct {
    CertificateOptions options;
    const char* message;
  } cases[] = {{{.name = "example.org"}, "another name"},
               {{.begins_seconds = -7200, .ends_seconds = -3600}, "valid only from"},
               {{.begins_seconds = 3600, .ends_seconds = 7200}, "valid only from"}};
  fs::create_directory(folder_);
  for (const auto& [options, message] : cases) {
    const Identity identity = MakeIdentity(options);
    Write(folder_ / "key.pem", identity.key_pem);
    const base::Status status = AfterReplacing("certificate.pem", identity.certificate_pem);
    EXPECT_TRUE(Contains(status.message(), "certificate.pem")) << status.message();
    EXPECT_TRUE(Contains(status.message(), message)) << status.message();
    EXPECT_TRUE(Contains(status.fix(), "remove key.pem")) << status.fix();
  }
}

TEST(RandomHexTest, HasTheLengthAndDoesNotRepeat) {
  EXPECT_EQ(RandomHex(0), "");
  EXPECT_EQ(RandomHex(16).size(), 32U);
  EXPECT_NE(RandomHex(16), RandomHex(16));
}

TEST(SameSecretTest, ComparesAllOfIt) {
  EXPECT_TRUE(SameSecret("", ""));
  EXPECT_TRUE(SameSecret("abc", "abc"));
  EXPECT_FALSE(SameSecret("abc", "abd"));
  EXPECT_FALSE(SameSecret("abc", "ab"));
  EXPECT_FALSE(SameSecret("abc", ""));
}

JoinToken SomeToken() {
  return {"0123456789abcdef", "00112233445566778899aabbccddeeff", base::Sha256("certificate")};
}

TEST(JoinTokenTest, ComesBackFromItsText) {
  for (const bool tls : {true, false}) {
    JoinToken token = SomeToken();
    if (!tls) token.fingerprint.clear();
    const std::string text = token.ToText();
    EXPECT_TRUE(text.starts_with("motley1-"));
    EXPECT_EQ(text.size(), tls ? 90U : 47U);
    const auto parsed = JoinToken::Parse(" \t" + text + "\r\n");
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    EXPECT_EQ(parsed->id, token.id);
    EXPECT_EQ(parsed->secret, token.secret);
    EXPECT_EQ(parsed->fingerprint, token.fingerprint);
  }
}

// Made by hand with Python: base64.urlsafe_b64encode(b + hashlib.sha256(b).digest()[:4]).
TEST(JoinTokenTest, HasTheDocumentedForm) {
  EXPECT_EQ((JoinToken{"0123456789abcdef", "00112233445566778899aabbccddeeff", ""}).ToText(),
            "motley1-AQEjRWeJq83vABEiM0RVZneImaq7zN3u_2vCDI0");
}

TEST(JoinTokenTest, RefusesEveryDamagedCharacter) {
  const std::string good = SomeToken().ToText();
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const char c : {'A', 'z', '_', '=', ' ', '\0', '\xff'}) {
      std::string bad = good;
      if (bad[i] == c || (c == ' ' && i + 1 == bad.size())) continue;
      bad[i] = c;
      const base::Status status = JoinToken::Parse(bad).status();
      EXPECT_EQ(status.code(), base::Code::kInvalidInput) << i;
      EXPECT_TRUE(Contains(status.fix(), "copy the whole token"));
    }
  }
}

TEST(JoinTokenTest, RefusesWhatIsCutOffOrTooLong) {
  const std::string good = SomeToken().ToText();
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(JoinToken::Parse(good.substr(0, size)).ok()) << size;
  }
  EXPECT_TRUE(Contains(JoinToken::Parse(good.substr(0, 50)).status().message(), "cut off"));
  EXPECT_FALSE(JoinToken::Parse(good + "A").ok());
  EXPECT_FALSE(JoinToken::Parse(good + "AAAA").ok());
  EXPECT_FALSE(JoinToken::Parse(good + good).ok());
  EXPECT_FALSE(JoinToken::Parse(std::string(1 << 20, 'A')).ok());
}

TEST(JoinTokenTest, RefusesAnotherPrefixAndDoesNotRepeatTheSecret) {
  const std::string rest = SomeToken().ToText().substr(8);
  for (const char* prefix : {"", "motley2-", "Motley1-", "motley1", "token:"}) {
    const base::Status status = JoinToken::Parse(prefix + rest).status();
    EXPECT_EQ(status.code(), base::Code::kInvalidInput) << prefix;
    EXPECT_TRUE(Contains(status.message(), "motley1-"));
    EXPECT_FALSE(Contains(status.ToString(), rest.substr(0, 8)));
  }
}

constexpr std::int64_t kDay = 24 * 60 * 60;

class TokenStoreTest : public SecurityTest {
 protected:
  TokenStore Store() {
    return TokenStore(folder_ / "tokens.json", [this] { return now_.load(); });
  }
  std::string Refusal(const std::string& id, const std::string& secret) {
    return Store().Check(id, secret).message();
  }
  std::atomic<std::int64_t> now_{1'800'000'000};
};

TEST_F(TokenStoreTest, AcceptsWhatItIssuedUntilItExpires) {
  const auto token = Store().Issue(60, base::Sha256("certificate"));
  ASSERT_TRUE(token.ok()) << token.status().ToString();
  EXPECT_EQ(token->fingerprint, base::Sha256("certificate"));
  EXPECT_TRUE(Store().Check(token->id, token->secret).ok());
  now_ += 59;
  EXPECT_TRUE(Store().Check(token->id, token->secret).ok()) << "many workers may use it";
  now_ += 1;
  EXPECT_TRUE(Contains(Refusal(token->id, token->secret), "expired"));
}

TEST_F(TokenStoreTest, RefusesUnknownAndWrongOnes) {
  const auto token = Store().Issue(60, "");
  const auto other = Store().Issue(60, "");
  EXPECT_TRUE(Contains(Refusal(SomeToken().id, token->secret), "unknown"));
  EXPECT_TRUE(Contains(Refusal(token->id, other->secret), "wrong secret"));
  EXPECT_TRUE(Contains(Refusal(token->id, ""), "wrong secret"));
  EXPECT_TRUE(Contains(Refusal(token->id, token->secret + "0"), "wrong secret"));
}

TEST_F(TokenStoreTest, DoesNotRepeatAMalformedIdOrASecretForTheLog) {
  ASSERT_TRUE(Store().Issue(60, "").ok());
  for (const char* id : {"", "0123456789abcde\n", "\x1b[2J", "0123456789ABCDEF", "0"}) {
    EXPECT_EQ(Refusal(id, "s3cret"), "a join token with a malformed id");
  }
  EXPECT_FALSE(Contains(Refusal(SomeToken().id, "s3cret"), "s3cret"));
}

TEST_F(TokenStoreTest, ASecondStoreSeesWhatTheFirstOneDidAtOnce) {
  TokenStore first = Store();
  TokenStore second = Store();
  const auto token = first.Issue(60, "");
  EXPECT_TRUE(second.Check(token->id, token->secret).ok());
  ASSERT_TRUE(first.Revoke(token->id).ok());
  EXPECT_TRUE(Contains(second.Check(token->id, token->secret).message(), "revoked"));
  ASSERT_TRUE(second.Revoke(token->id).ok()) << "twice is no failure";
  EXPECT_TRUE(second.List()->at(0).revoked);
}

TEST_F(TokenStoreTest, ListsItsTokens) {
  EXPECT_TRUE(Store().List()->empty());
  const auto token = Store().Issue(60, "");
  const auto entries = Store().List();
  ASSERT_EQ(entries->size(), 1U);
  EXPECT_EQ(entries->at(0).id, token->id);
  EXPECT_EQ(entries->at(0).issued, now_);
  EXPECT_EQ(entries->at(0).expires, now_ + 60);
  EXPECT_FALSE(entries->at(0).revoked);
}

TEST_F(TokenStoreTest, ForgetsWhatExpiredLongAgo) {
  ASSERT_TRUE(Store().Issue(60, "").ok());
  now_ += 29 * kDay;
  ASSERT_TRUE(Store().Issue(60, "").ok());
  EXPECT_EQ(Store().List()->size(), 2U);
  now_ += 2 * kDay;
  ASSERT_TRUE(Store().Issue(60, "").ok());
  EXPECT_EQ(Store().List()->size(), 2U);
}

TEST_F(TokenStoreTest, RefusesToRevokeWhatIsNotThere) {
  ASSERT_TRUE(Store().Issue(60, "").ok());
  const base::Status status = Store().Revoke("nothing");
  EXPECT_EQ(status.code(), base::Code::kNotFound);
  EXPECT_TRUE(Contains(status.message(), "nothing"));
}

TEST_F(TokenStoreTest, RefusesAnImpossibleTimeOrFingerprint) {
  for (const std::int64_t seconds :
       {std::int64_t{0}, std::int64_t{-1}, 4000 * kDay, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(Store().Issue(seconds, "").status().code(), base::Code::kInvalidInput) << seconds;
  }
  EXPECT_EQ(Store().Issue(60, "abc").status().code(), base::Code::kInvalidInput);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(TokenStoreTest, LosesNoneWhenManyIssueAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5; ++k) EXPECT_TRUE(Store().Issue(60, "").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Store().List()->size(), 40U);
}

TEST_F(TokenStoreTest, KeepsNoSecretAndNoPermissionForOthers) {
  const auto token = Store().Issue(60, "");
  EXPECT_FALSE(Contains(*base::ReadFile(folder_ / "tokens.json"), token->secret));
  EXPECT_EQ(Mode(folder_), 0700);
  EXPECT_EQ(Mode(folder_ / "tokens.json"), 0600);
  ASSERT_EQ(::chmod((folder_ / "tokens.json").c_str(), 0644), 0);
  const base::Status status = Store().Check(token->id, token->secret);
  EXPECT_TRUE(Contains(status.fix(), "chmod 600")) << status.ToString();
}

TEST_F(TokenStoreTest, RefusesADamagedFileWithItsNameAndLeavesItAlone) {
  const auto token = Store().Issue(60, "");
  const std::string good = *base::ReadFile(folder_ / "tokens.json");
  const auto with = [&](std::string_view part, std::string_view other) {
    std::string bad = good;
    return bad.replace(bad.find(part), part.size(), other);
  };
  const std::string entry =
      good.substr(good.find("    {"), good.find("    }") + 5 - good.find("    {"));
  for (const std::string& bad :
       {std::string(), std::string("hello"), std::string("[]"), std::string("{}"),
        good.substr(0, good.size() / 2), std::string(100'000, '['),
        std::string(R"({"version": 1, "tokens": [7]})"), with("\"version\": 1", "\"version\": 2"),
        with("\"revoked\": false", "\"revoked\": \"no\""), with("\"id\": \"", "\"id\": \"x"),
        with("\"sha256\": \"", "\"sha256\": \"\xff"), with("\"sha256\"", "\"sha255\""),
        with("\"expires\": 1800000060", "\"expires\": 18446744073709551615"),
        with("\"expires\": 1800000060", "\"expires\": -1"),
        with("\"issued\": 1800000000", "\"issued\": 1e300"), with(entry, entry + "," + entry)}) {
    Write(folder_ / "tokens.json", bad);
    for (const base::Status& status :
         {Store().Check(token->id, token->secret), Store().Revoke(token->id),
          Store().Issue(60, "").status(), Store().List().status()}) {
      EXPECT_EQ(status.code(), base::Code::kInvalidInput) << bad.substr(0, 300);
      EXPECT_TRUE(Contains(status.message(), "tokens.json")) << status.message();
      EXPECT_TRUE(Contains(status.fix(), "tokens.json")) << status.fix();
    }
    EXPECT_EQ(*base::ReadFile(folder_ / "tokens.json"), bad);
  }
}

TEST_F(SecurityTest, ALockThatIsHeldIsWaitedForOnlySoLong) {
  const base::RealClock clock;
  const double begin = clock.Now();
  const base::Status status = WithFolderLocked(folder_, [&] {
    return WithFolderLocked(
        folder_, [] { return base::Status(); }, 0.1);
  });
  EXPECT_EQ(status.code(), base::Code::kUnavailable);
  EXPECT_TRUE(Contains(status.message(), ".lock")) << status.message();
  EXPECT_LT(clock.Now() - begin, 20.0);
}

}  // namespace
}  // namespace motley::cluster
