#include "motley/cluster/shard_record.h"

#include <algorithm>
#include <set>
#include <utility>

namespace motley::cluster {
namespace {

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool ShardRecord::Add(Failure failure) {
  for (const Failure& one : failures_) {
    if (one.generation == failure.generation && one.member == failure.member &&
        one.host == failure.host) {
      return false;
    }
  }
  failures_.push_back(std::move(failure));
  return true;
}

ShardRecord::Verdict ShardRecord::Judge(double now, const std::vector<std::string>& here) {
  std::erase_if(failures_, [&](const Failure& one) { return one.time < now - kWindowSeconds; });
  Verdict verdict;
  for (const std::string& name : here) {
    if (BlameMember(name, here)) verdict.members.push_back(name);
  }
  for (const std::string& name : here) {
    if (BlameHost(name, here, verdict.members)) verdict.hosts.push_back(name);
  }
  return verdict;
}

bool ShardRecord::BlameMember(const std::string& member,
                              const std::vector<std::string>& here) const {
  std::set<std::uint64_t> attempts;
  for (const Failure& one : failures_) {
    if (one.member != member || one.host == member || !Contains(here, one.host)) continue;
    const bool alone = std::none_of(failures_.begin(), failures_.end(), [&](const Failure& other) {
      return other.host == one.host && other.member != member;
    });
    if (alone) attempts.insert(one.generation);
  }
  return std::ssize(attempts) >= kMaxOfMember;
}

bool ShardRecord::BlameHost(const std::string& host, const std::vector<std::string>& here,
                            const std::vector<std::string>& liars) const {
  std::set<std::uint64_t> attempts;
  std::set<std::string> unserved;
  for (const Failure& one : failures_) {
    if (one.host != host || Contains(liars, one.member)) continue;
    attempts.insert(one.generation);
    if (one.silent) unserved.insert(one.member);
  }
  const auto enough = std::min<std::ptrdiff_t>(2, std::ssize(here) - 1);
  return std::ssize(attempts) >= kMaxOfHost || unserved.contains(host) ||
         (!unserved.empty() && std::ssize(unserved) >= enough);
}

}  // namespace motley::cluster
