#ifndef MOTLEY_CLUSTER_SHARD_RECORD_H_
#define MOTLEY_CLUSTER_SHARD_RECORD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace motley::cluster {

// Which member has told of which host of a range that it does not reach it, or gets nothing from
// it; which host has told of which member that it sends nonsense; and who is to blame when that
// happens again and again. Nobody can be believed alone: so a host is relieved of its range, which
// harms nobody, and a member that tells so of host after host, of whom the others tell nothing, is
// sent away.
//
// Remembers by name: who goes and comes back finds its record. Updates in between change nothing.
//
// Thread safety: none.
class ShardRecord {
 public:
  static constexpr double kWindowSeconds = 600.0;  // for which a failure is remembered
  static constexpr double kSameSeconds = 1.0;      // in which it is told again in a new attempt
  // Attempts that a host may fail in, and of which a member alone may tell such things.
  static constexpr int kMaxOfHost = 3, kMaxOfMember = 6;

  struct Failure {
    double time = 0.0;             // on the clock
    std::uint64_t generation = 0;  // the attempt
    std::string member, host;
    bool silent = false;  // connected, and nothing comes
  };
  // False when the member has told this of the host in this attempt, or just before it.
  bool Add(Failure failure);

  // Members of which a host alone may complain, and how often of one.
  static constexpr int kMaxAccused = 2, kMaxComplaints = 3;
  void Complain(double now, const std::string& host, const std::string& member);
  // Whether several hosts have complained of the member.
  bool Confirmed(const std::string& member) const;
  // Whether the host has complained too often of what no other one has seen. It is then to blame.
  bool Doubtful(const std::string& host) const;

  struct Verdict {
    std::vector<std::string> hosts, members;
  };
  // Who is to blame of those who are here. A host that is silent to two of them, to the only other
  // one, or to itself need not be tried again.
  Verdict Judge(double now, const std::vector<std::string>& here);
  // Whether it was to blame as a member, and must stay away for a while. It is not believed then.
  bool Barred(double now, const std::string& name) const;

 private:
  bool BlameMember(const std::string& member, const std::vector<std::string>& here) const;
  bool BlameHost(const std::string& host, const std::vector<std::string>& here) const;

  struct Complaint {
    double time = 0.0;
    std::string host, member;
  };

  std::vector<Failure> failures_;
  std::vector<Complaint> complaints_;
  std::map<std::string, double> barred_;  // since when
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_SHARD_RECORD_H_
