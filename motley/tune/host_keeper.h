#ifndef MOTLEY_TUNE_HOST_KEEPER_H_
#define MOTLEY_TUNE_HOST_KEEPER_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/plan/controller.h"
#include "motley/plan/hosts.h"
#include "motley/tune/keeper_record.h"

namespace motley::tune {

// Decides which devices hold the ranges of a model that is cut into shards (plan/hosts.h), while
// another controller decides about everything else. Decides when a device comes, goes or turns out
// to be unfit. Who is reached only on its own machine holds a range as long as all devices are
// there.
//
// Every change is noted with what the exchange of gradients and weights should take of a step: no
// more than what the farthest device needed for the whole model when it joined. Ten steps later,
// what it took.
//
// Thread safety: none.
class HostKeeper final : public plan::Controller {
 public:
  // Requires shards > 1: the ranges, with the coordinator's own.
  HostKeeper(std::unique_ptr<plan::Controller> planner, int shards);

  std::optional<plan::Plan> OnEvent(const plan::Event& event) override;
  std::vector<plan::Note> TakeNotes() override;

 private:
  // True when somebody else holds a range now.
  bool Choose(const std::string& reason);
  // What came of the present hosts.
  void TellOutcome(KeeperRecord::When when);
  std::string Words(const std::vector<std::string>& hosts) const;

  const std::unique_ptr<plan::Controller> planner_;
  const int ranges_;  // to be given to devices
  std::vector<plan::HostCandidate> candidates_;
  std::map<std::string, double> communication_seconds_;  // of all devices
  std::vector<std::string> elsewhere_;  // devices on other machines than the coordinator's
  std::vector<std::string> hosts_;
  plan::Plan plan_;
  double expected_seconds_ = 0.0;  // of the exchange
  std::vector<double> exchange_;   // seconds, of the steps since the decision until it is told
  KeeperRecord record_{"host"};
  std::vector<plan::Note> notes_;
};

}  // namespace motley::tune

#endif  // MOTLEY_TUNE_HOST_KEEPER_H_
