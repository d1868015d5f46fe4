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
    if (one.member == failure.member && one.host == failure.host &&
        (one.generation == failure.generation || failure.time - one.time < kSameSeconds)) {
      return false;
    }
  }
  failures_.push_back(std::move(failure));
  return true;
}

void ShardRecord::Complain(double now, const std::string& host, const std::string& member) {
  std::erase_if(complaints_, [&](const auto& one) { return one.time < now - kWindowSeconds; });
  complaints_.push_back({now, host, member});
}

bool ShardRecord::Confirmed(const std::string& member) const {
  std::set<std::string> hosts;
  for (const Complaint& one : complaints_) {
    if (one.member == member) hosts.insert(one.host);
  }
  return hosts.size() > 1;
}

bool ShardRecord::Doubtful(const std::string& host) const {
  std::map<std::string, int> accused;
  int most = 0;
  for (const Complaint& one : complaints_) {
    if (one.host == host && !Confirmed(one.member)) most = std::max(most, ++accused[one.member]);
  }
  return std::ssize(accused) >= kMaxAccused || most >= kMaxComplaints;
}

ShardRecord::Verdict ShardRecord::Judge(double now, const std::vector<std::string>& here) {
  std::erase_if(failures_, [&](const Failure& one) { return one.time < now - kWindowSeconds; });
  std::erase_if(complaints_, [&](const auto& one) { return one.time < now - kWindowSeconds; });
  std::erase_if(barred_, [&](const auto& one) { return one.second < now - kWindowSeconds; });
  std::set<std::string> tellers;
  for (const Failure& one : failures_) tellers.insert(one.member);
  Verdict verdict;
  for (const std::string& name : tellers) {
    if (!BlameMember(name, here)) continue;
    barred_.emplace(name, now);
    if (Contains(here, name)) verdict.members.push_back(name);
  }
  for (const std::string& name : here) {
    if (BlameHost(name, here)) verdict.hosts.push_back(name);
  }
  return verdict;
}

bool ShardRecord::Barred(double now, const std::string& name) const {
  const auto found = barred_.find(name);
  return found != barred_.end() && found->second >= now - kWindowSeconds;
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

bool ShardRecord::BlameHost(const std::string& host, const std::vector<std::string>& here) const {
  std::set<std::uint64_t> attempts;
  std::set<std::string> unserved;
  for (const Failure& one : failures_) {
    if (one.host != host || barred_.contains(one.member)) continue;
    attempts.insert(one.generation);
    if (one.silent && Contains(here, one.member)) unserved.insert(one.member);
  }
  const auto enough = std::min<std::ptrdiff_t>(2, std::ssize(here) - 1);
  return std::ssize(attempts) >= kMaxOfHost || Doubtful(host) || unserved.contains(host) ||
         (!unserved.empty() && std::ssize(unserved) >= enough);
}

}  // namespace motley::cluster
