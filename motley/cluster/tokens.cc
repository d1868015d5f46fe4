#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "motley/base/file.h"
#include "motley/cluster/security.h"

namespace motley::cluster {
namespace {

using nlohmann::json;

// A token is: version, id, secret, fingerprint or nothing, checksum.
constexpr std::string_view kPrefix = "motley1-";
constexpr char kVersion = 1;
constexpr std::size_t kIdBytes = 8, kSecretBytes = 16, kSha256Bytes = 32, kChecksumBytes = 4;
constexpr std::size_t kShortBytes = 1 + kIdBytes + kSecretBytes + kChecksumBytes;
constexpr std::size_t kLongBytes = kShortBytes + kSha256Bytes;

constexpr int kFileVersion = 1;
constexpr std::int64_t kDaySeconds = 24 * 60 * 60;
constexpr std::int64_t kMaxSeconds = 3650 * kDaySeconds;  // as long as the certificate
// An expired token stays in the file for so long, for the log to say what it was.
constexpr std::int64_t kKeptSeconds = 30 * kDaySeconds;

constexpr std::string_view kBase64Url =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::string_view kHex = "0123456789abcdef";

bool IsHex(std::string_view text, std::size_t bytes) {
  return text.size() == 2 * bytes && text.find_first_not_of(kHex) == std::string_view::npos;
}

std::string ToHex(std::string_view bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

// Of what IsHex() holds for.
std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(kHex.find(hex[i]) << 4 | kHex.find(hex[i + 1]));
  }
  return bytes;
}

std::string Checksum(std::string_view bytes) {
  return FromHex(base::Sha256(bytes)).substr(0, kChecksumBytes);
}

constexpr std::size_t Characters(std::size_t bytes) { return (8 * bytes + 5) / 6; }

std::string ToBase64Url(std::string_view bytes) {
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const unsigned char byte : bytes) {
    bits = bits << 8 | byte;
    for (count += 8; count >= 6; count -= 6) text += kBase64Url[bits >> (count - 6) & 63];
  }
  if (count > 0) text += kBase64Url[bits << (6 - count) & 63];
  return text;
}

// Nothing for a character that does not belong there, and for bits of the last one that no byte
// needs: a token has one spelling.
std::optional<std::string> FromBase64Url(std::string_view text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t value = kBase64Url.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 255);
  }
  const bool all_used = count < 6 && (bits & ((1U << count) - 1)) == 0;
  return all_used ? std::optional(std::move(bytes)) : std::nullopt;
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

struct Stored : TokenStore::Entry {
  std::string sha256;  // of the secret
};
using Tokens = std::vector<Stored>;

bool IsTime(const json& value) {
  if (value.is_number_unsigned()) {
    return value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
  }
  return value.is_number_integer() && value.get<std::int64_t>() >= 0;
}

base::Result<Stored> FromJson(const json& token) {
  const auto field = [&](const char* key) {
    return token.is_object() ? token.value(key, json()) : json();
  };
  const json id = field("id"), sha256 = field("sha256"), revoked = field("revoked");
  const json issued = field("issued"), expires = field("expires");
  if (!id.is_string() || !IsHex(id.get_ref<const std::string&>(), kIdBytes)) {
    return base::InvalidInput("\"id\" is not {} hexadecimal digits", 2 * kIdBytes);
  }
  if (!sha256.is_string() || !IsHex(sha256.get_ref<const std::string&>(), kSha256Bytes)) {
    return base::InvalidInput("\"sha256\" is not {} hexadecimal digits", 2 * kSha256Bytes);
  }
  if (!IsTime(issued)) return base::InvalidInput("\"issued\" is not in seconds since 1970");
  if (!IsTime(expires)) return base::InvalidInput("\"expires\" is not in seconds since 1970");
  if (!revoked.is_boolean()) return base::InvalidInput("\"revoked\" is not true or false");
  Stored stored;
  stored.id = id.get<std::string>();
  stored.sha256 = sha256.get<std::string>();
  stored.issued = issued.get<std::int64_t>();
  stored.expires = expires.get<std::int64_t>();
  stored.revoked = revoked.get<bool>();
  return stored;
}

base::Result<Tokens> ParseTokens(const std::string& text) {
  json root;
  try {
    root = json::parse(text);
  } catch (const json::parse_error& error) {
    return base::InvalidInput("is no JSON at byte {}", error.byte);
  }
  if (!root.is_object() || root.value("version", json()) != kFileVersion) {
    return base::InvalidInput("\"version\" is not {}", kFileVersion);
  }
  const json list = root.value("tokens", json());
  if (!list.is_array()) return base::InvalidInput("\"tokens\" is not a list");
  Tokens tokens;
  std::set<std::string> ids;
  for (const json& token : list) {
    auto stored = FromJson(token);
    const std::string place = fmt::format("token {}", tokens.size() + 1);
    if (!stored.ok()) return std::move(stored).status().In(place);
    // One of them may be revoked, and it would be chance which one counts.
    if (!ids.insert(stored->id).second) {
      return base::InvalidInput("{}: the id {} comes twice", place, stored->id);
    }
    tokens.push_back(std::move(stored).value());
  }
  return tokens;
}

base::Result<Tokens> Read(const std::filesystem::path& file) {
  const auto text = ReadPrivateFile(file);
  if (!text.ok() && text.status().code() == base::Code::kNotFound) return Tokens();
  if (!text.ok()) return text.status();
  auto tokens = ParseTokens(*text);
  if (tokens.ok()) return tokens;
  return std::move(tokens)
      .status()
      .In(file.string())
      .WithFix(fmt::format("repair it, or remove '{}' and issue new tokens", file.string()));
}

base::Status Write(const std::filesystem::path& file, const Tokens& tokens) {
  json list = json::array();
  for (const Stored& token : tokens) {
    list.push_back({{"id", token.id},
                    {"sha256", token.sha256},
                    {"issued", token.issued},
                    {"expires", token.expires},
                    {"revoked", token.revoked}});
  }
  const json root = {{"version", kFileVersion}, {"tokens", std::move(list)}};
  return WritePrivateFile(file, root.dump(2) + "\n");
}

// Reads, changes and writes as one, also against other processes.
base::Status Change(const std::filesystem::path& file,
                    const std::function<base::Status(Tokens&)>& change) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  return WithFolderLocked(folder, [&]() -> base::Status {
    MOTLEY_ASSIGN_OR_RETURN(Tokens tokens, Read(file));
    MOTLEY_RETURN_IF_ERROR(change(tokens));
    return Write(file, tokens);
  });
}

Tokens::iterator Find(Tokens& tokens, const std::string& id) {
  return std::find_if(tokens.begin(), tokens.end(),
                      [&](const Stored& token) { return token.id == id; });
}

}  // namespace

std::string JoinToken::ToText() const {
  MOTLEY_CHECK(IsHex(id, kIdBytes) && IsHex(secret, kSecretBytes) &&
                   (fingerprint.empty() || IsHex(fingerprint, kSha256Bytes)),
               "a join token with fields that no token has");
  const std::string bytes = kVersion + FromHex(id) + FromHex(secret) + FromHex(fingerprint);
  return std::string(kPrefix) + ToBase64Url(bytes + Checksum(bytes));
}

base::Result<JoinToken> JoinToken::Parse(std::string_view text) {
  // Without the text: it is a secret, and this may go to a log.
  const auto refuse = [](std::string_view why) {
    return base::InvalidInput("the join token {}", why)
        .WithFix("copy the whole token, from motley1- on, as the coordinator printed it");
  };
  text = Trimmed(text);
  if (!text.starts_with(kPrefix)) return refuse("does not begin with motley1-");
  text.remove_prefix(kPrefix.size());
  if (text.size() != Characters(kShortBytes) && text.size() != Characters(kLongBytes)) {
    return refuse(text.size() < Characters(kLongBytes) ? "is cut off" : "is too long");
  }
  const auto bytes = FromBase64Url(text);
  if (!bytes) return refuse("is damaged: it has characters that no token has");
  const std::string_view content =
      std::string_view(*bytes).substr(0, bytes->size() - kChecksumBytes);
  if (bytes->substr(content.size()) != Checksum(content)) {
    return refuse("is damaged: its checksum does not fit");
  }
  if (content[0] != kVersion) return refuse("is of a newer version of Motley");
  return JoinToken{ToHex(content.substr(1, kIdBytes)),
                   ToHex(content.substr(1 + kIdBytes, kSecretBytes)),
                   ToHex(content.substr(1 + kIdBytes + kSecretBytes))};
}

TokenStore::TokenStore(std::filesystem::path file, std::function<std::int64_t()> now)
    : file_(std::move(file)), now_(std::move(now)) {}

base::Result<JoinToken> TokenStore::Issue(std::int64_t seconds, const std::string& fingerprint) {
  if (seconds < 1 || seconds > kMaxSeconds) {
    return base::InvalidInput("a join token cannot be valid for {} s", seconds)
        .WithFix(fmt::format("give 1 to {} s (ten years)", kMaxSeconds));
  }
  if (!fingerprint.empty() && !IsHex(fingerprint, kSha256Bytes)) {
    return base::InvalidInput("'{}' is no SHA-256 of a certificate", fingerprint);
  }
  JoinToken token{RandomHex(kIdBytes), RandomHex(kSecretBytes), fingerprint};
  const std::int64_t now = now_();
  MOTLEY_RETURN_IF_ERROR(Change(file_, [&](Tokens& tokens) -> base::Status {
    std::erase_if(tokens, [&](const Stored& old) { return old.expires < now - kKeptSeconds; });
    Stored& stored = tokens.emplace_back();
    stored.id = token.id;
    stored.sha256 = base::Sha256(token.secret);
    stored.issued = now;
    stored.expires = now + seconds;
    return {};
  }));
  return token;
}

base::Status TokenStore::Check(const std::string& id, const std::string& secret) {
  if (!IsHex(id, kIdBytes)) return base::InvalidInput("a join token with a malformed id");
  MOTLEY_ASSIGN_OR_RETURN(Tokens tokens, Read(file_));
  const auto refuse = [&](std::string_view why) {
    return base::InvalidInput("join token {}: {}", id, why);
  };
  const auto token = Find(tokens, id);
  if (token == tokens.end()) return refuse("unknown");
  if (!SameSecret(base::Sha256(secret), token->sha256)) return refuse("wrong secret");
  if (token->revoked) return refuse("revoked");
  if (now_() >= token->expires) return refuse("expired");
  return {};
}

base::Status TokenStore::Revoke(const std::string& id) {
  return Change(file_, [&](Tokens& tokens) -> base::Status {
    const auto token = Find(tokens, id);
    if (token == tokens.end()) {
      return base::NotFound("{}: no token has the id '{}'", file_.string(), id)
          .WithFix("give the id of a token as the list of tokens shows it");
    }
    token->revoked = true;
    return {};
  });
}

base::Result<std::vector<TokenStore::Entry>> TokenStore::List() {
  MOTLEY_ASSIGN_OR_RETURN(const Tokens tokens, Read(file_));
  return std::vector<Entry>(tokens.begin(), tokens.end());
}

}  // namespace motley::cluster
