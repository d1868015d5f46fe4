#include "motley/tune/host_keeper.h"

#include <algorithm>
#include <utility>

#include "motley/base/check.h"
#include "motley/plan/plan_record.h"

namespace motley::tune {
namespace {

constexpr std::size_t kEnoughSteps = 10;

// What a step took besides computing.
double ExchangeOf(const plan::StepDone& step) {
  double compute = 0.0;
  for (const auto& part : step.parts) compute = std::max(compute, part.compute_seconds);
  return std::max(0.0, step.seconds - compute);
}

}  // namespace

HostKeeper::HostKeeper(std::unique_ptr<plan::Controller> planner, int shards)
    : planner_(std::move(planner)), ranges_(shards - 1) {
  MOTLEY_CHECK(shards > 1, "{} shards", shards);
}

std::optional<plan::Plan> HostKeeper::OnEvent(const plan::Event& event) {
  const auto forget = [this](const std::string& device) {
    std::erase_if(candidates_, [&](const auto& one) { return one.device == device; });
  };
  const auto* unfit = std::get_if<plan::HostUnfit>(&event);
  auto plan = unfit == nullptr ? planner_->OnEvent(event) : std::nullopt;
  const bool planned = plan.has_value();
  if (planned) plan_ = std::move(*plan);
  bool changed = false;
  if (const auto* joined = std::get_if<plan::DeviceJoined>(&event)) {
    communication_seconds_[joined->device] = joined->communication_seconds;
    if (!joined->here_only) elsewhere_.push_back(joined->device);
    if (joined->can_host) {
      candidates_.push_back({joined->device, joined->communication_seconds, joined->here_only});
    }
    changed = !candidates_.empty() && Choose(joined->device + " joined");
  } else if (const auto* lost = std::get_if<plan::DeviceLost>(&event)) {
    forget(lost->device);
    std::erase(elsewhere_, lost->device);
    communication_seconds_.erase(lost->device);
    changed = Choose(fmt::format("{} lost: {}", lost->device, lost->reason));
  } else if (unfit != nullptr) {
    forget(unfit->device);
    changed = Choose(fmt::format("{} is unfit: {}", unfit->device, unfit->reason));
  } else if (const auto* step = std::get_if<plan::StepDone>(&event); step && !record_.told()) {
    exchange_.push_back(ExchangeOf(*step));
    if (exchange_.size() == kEnoughSteps) TellOutcome(KeeperRecord::When::kMeasured);
  } else if (std::holds_alternative<plan::JobEnded>(event)) {
    TellOutcome(KeeperRecord::When::kEnded);
  }
  if (!planned && !changed) return std::nullopt;
  plan_.hosts = hosts_;
  return plan_;
}

bool HostKeeper::Choose(const std::string& reason) {
  std::vector<plan::HostCandidate> candidates = candidates_;
  if (!elsewhere_.empty()) {
    std::erase_if(candidates, [](const auto& one) { return one.here_only; });
  }
  std::vector<std::string> hosts = plan::ChooseHosts(candidates, hosts_, ranges_);
  if (hosts == hosts_) return false;
  const std::string before = Words(hosts_), after = Words(hosts);
  hosts_ = std::move(hosts);
  if (before == after) return true;  // there was nobody, and still is not
  TellOutcome(KeeperRecord::When::kReplaced);
  exchange_.clear();
  expected_seconds_ = 0.0;
  for (const auto& [device, seconds] : communication_seconds_) {
    expected_seconds_ = std::max(expected_seconds_, seconds);
  }
  record_.Decide(
      {"decision",
       fmt::format("{}: {}; the nearest by the network, who has a range keeps it; the exchange is "
                   "predicted to take up to {} of a step",
                   after, reason, plan::Milliseconds(expected_seconds_)),
       {{"reason", reason}, {"before", before}, {"after", after}},
       {{"predicted_exchange_seconds", expected_seconds_}}},
      notes_);
  return true;
}

void HostKeeper::TellOutcome(KeeperRecord::When when) {
  KeeperRecord::Numbers numbers = {{"predicted_exchange_seconds", expected_seconds_}};
  std::string words = "no step was made with it";
  if (!exchange_.empty()) {
    const double median = plan::MedianOf(exchange_);
    words = fmt::format("the exchange was predicted to take up to {} of a step and took {}",
                        plan::Milliseconds(expected_seconds_), plan::Milliseconds(median));
    numbers.emplace_back("measured_exchange_seconds", median);
  }
  record_.Tell(when, words, std::move(numbers), notes_);
}

std::string HostKeeper::Words(const std::vector<std::string>& hosts) const {
  std::string words = "ranges of the model: coordinator";
  for (std::size_t i = 0; i < static_cast<std::size_t>(ranges_); ++i) {
    words += " | " + (i < hosts.size() && !hosts[i].empty() ? hosts[i] : "coordinator");
  }
  return words;
}

std::vector<plan::Note> HostKeeper::TakeNotes() {
  std::vector<plan::Note> notes = planner_->TakeNotes();
  std::move(notes_.begin(), notes_.end(), std::back_inserter(notes));
  notes_.clear();
  return notes;
}

}  // namespace motley::tune
