#ifndef MOTLEY_TUNE_HOST_KEEPER_H_
#define MOTLEY_TUNE_HOST_KEEPER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/plan/controller.h"
#include "motley/plan/hosts.h"

namespace motley::tune {

// Decides which devices hold the ranges of a model that is cut into shards (plan/hosts.h), while
// another controller decides about everything else. Decides when a device comes, goes or turns out
// to be unfit; every change is noted. Who is reached only on its own machine holds a range as long
// as all devices are there.
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
  std::string Words(const std::vector<std::string>& hosts) const;

  const std::unique_ptr<plan::Controller> planner_;
  const int ranges_;  // to be given to devices
  std::vector<plan::HostCandidate> candidates_;
  std::vector<std::string> elsewhere_;  // devices on other machines than the coordinator's
  std::vector<std::string> hosts_;
  plan::Plan plan_;
  std::vector<plan::Note> notes_;
};

}  // namespace motley::tune

#endif  // MOTLEY_TUNE_HOST_KEEPER_H_
