#ifndef MOTLEY_CLUSTER_DESK_H_
#define MOTLEY_CLUSTER_DESK_H_

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/cluster/coordinator.h"
#include "motley/cluster/head_server.h"
#include "motley/cluster/model_server.h"
#include "motley/cluster/service.h"
#include "motley/data/dataset.h"

namespace motley::cluster {

// The front desk of a coordinator: checks who comes in and what they send, passes reports on to the
// coordinator's thread, watches for signs of life. Everything that the network can reach is here.
//
// Thread safety: all calls from any thread, unless it says otherwise.
class Desk final : public Handler {
 public:
  struct Item {
    SessionPtr session;
    proto::Report report;
    bool closed = false;  // the session has ended; there is no report
  };

  // All borrowed objects outlive the desk.
  Desk(const CoordinatorOptions& options, const proto::Job& job, const data::DataPair& data,
       ModelServer& model, HeadServer* head, const base::Clock& clock,
       const CoordinatorHooks& hooks);
  ~Desk() override;

  // For the coordinator's thread: all that was reported since the last time.
  std::deque<Item> TakeNews();
  // Until a report is there, Wake is called, or `seconds` have passed.
  void WaitForNews(double seconds);
  void Wake();
  std::vector<SessionPtr> sessions() const;
  // Ends the session of one that may not stay.
  void SendAway(const SessionPtr& session, const std::string& reason);

  // From now on only rendezvous of this generation are served, and only to those who form its
  // group. Who waits for an older one is woken.
  void BeginGeneration(std::uint64_t generation, const std::vector<SessionPtr>& members);

  // The model and the velocity of a step that a member is asked to send here.
  struct Upload {
    StepKey key;
    std::string from;
    std::vector<float> model, velocity;
    std::vector<bool> seen_model, seen_velocity;  // by part
    std::int64_t missing = 0;                     // floats
  };
  void ExpectUpload(const StepKey& key, const std::string& from);
  std::int64_t MissingOfUpload() const;  // floats
  Upload TakeUpload();

  // What `motley status` shows beyond the sessions.
  void Show(const proto::StatusReply& progress);
  void Event(const std::string& name, const std::string& message,
             const std::vector<std::pair<std::string, std::string>>& fields);

  // The same of those who are no members: so often that nobody can fill the disk by it.
  void EventOfStranger(const std::string& name, const std::string& message,
                       std::vector<std::pair<std::string, std::string>> fields);

  base::Result<proto::JoinReply> Join(const Caller& caller,
                                      const proto::JoinRequest& request) override;
  base::Result<SessionPtr> Authenticate(const Caller& caller) override;
  base::Status OnReport(const SessionPtr& session, const proto::Report& report) override;
  base::Status OnPart(const SessionPtr& session, proto::Part& part) override;
  void OnClosed(const SessionPtr& session, const std::string& reason) override;
  base::Status Samples(const proto::SamplesRequest& request,
                       const std::function<bool(const proto::SamplesReply&)>& send) override;
  base::Result<proto::RendezvousReply> Rendezvous(const SessionPtr& session,
                                                  const proto::RendezvousRequest& request) override;
  base::Result<proto::StatusReply> Status(const Caller& caller) override;
  void OnRefused(const Caller& caller, const std::string& what) override;

 private:
  base::Status CheckToken(const Caller& caller);
  base::Result<std::string> ChooseName(const std::string& wanted, bool again);  // requires mutex_
  base::Status Accept(const SessionPtr& session, const proto::Report& report);
  base::Status Accept(const SessionPtr& session, proto::Part& part);
  base::Status Receive(const SessionPtr& session, const proto::Part& part);
  base::Status SendLabels(const data::Dataset& set,
                          const std::function<bool(const proto::SamplesReply&)>& send) const;
  base::Status SendPixels(const data::Dataset& set, const proto::SamplesRequest& request,
                          const std::function<bool(const proto::SamplesReply&)>& send) const;
  base::Status SetRendezvous(const proto::RendezvousRequest& request);  // requires its mutex
  void Watch(const std::stop_token& stop);

  const CoordinatorOptions& options_;
  const proto::Job& job_;
  const data::DataPair& data_;
  ModelServer& model_;
  HeadServer* const head_;  // null: the workers have the whole net
  const base::Clock& clock_;
  const CoordinatorHooks& hooks_;

  mutable std::mutex mutex_;
  std::condition_variable news_;
  bool woken_ = false;
  std::deque<Item> inbox_;
  std::map<std::string, SessionPtr> sessions_;
  std::int64_t joined_ = 0;  // ever
  proto::StatusReply progress_;
  std::deque<proto::MemberStatus> lost_;  // the last few

  std::mutex rendezvous_mutex_;
  std::condition_variable rendezvous_changed_;
  std::uint64_t rendezvous_generation_ = 0;
  std::set<SessionPtr> rendezvous_members_, rendezvous_waiting_;
  std::map<std::string, std::string> rendezvous_;
  std::size_t rendezvous_bytes_ = 0;  // of keys and values

  mutable std::mutex upload_mutex_;
  std::optional<Upload> upload_;

  std::mutex refusals_mutex_;
  double refusals_left_, refusals_time_ = 0.0;
  std::int64_t refusals_hidden_ = 0;

  std::mutex event_mutex_;
  std::jthread watch_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_DESK_H_
