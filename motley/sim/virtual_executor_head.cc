// A merged head: the devices compute the body, a server the rest.
#include <algorithm>
#include <cmath>
#include <utility>

#include "motley/base/check.h"
#include "motley/sim/virtual_executor.h"

namespace motley::sim {

void VirtualExecutor::PrepareHead() {
  MOTLEY_CHECK(!options_.merged_head->halves.head.has_batch_norm(), "a batch norm in the head");
  for (const VirtualDevice& one : options_.devices) {
    MOTLEY_CHECK(one.secret == nullptr, "a merged head and private samples");
  }
  if (options_.time_only) return;
  split_.emplace(*options_.merged_head->body, *options_.merged_head->head);
  head_sum_.resize(weights_.size() - own_);
  head_part_.resize(head_sum_.size());
}

base::Result<bool> VirtualExecutor::PassHead(int number, const optim::SgdOptions& wanted) {
  if (options_.time_only) return true;
  Flight& flight = flights_[static_cast<std::size_t>(number)];
  if (!UpdateHead()) {
    flight.update.not_finite = "a weight";
    return false;
  }
  MOTLEY_RETURN_IF_ERROR(ComputeGradient(flight.batches, flight));
  flight.batches.clear();
  optim::SgdOptions sgd = OfPlan(wanted, flight);
  sgd.momentum = wanted.momentum;  // nothing implies any here
  head_update_ = {number, sgd, flight.update.samples};
  if (!std::isfinite(flight.update.loss_sum)) flight.update.not_finite = "the loss";
  return flight.update.not_finite.empty();
}

bool VirtualExecutor::UpdateHead() {
  if (!head_update_) return true;
  const HeadUpdate update = *std::exchange(head_update_, std::nullopt);
  return optim::SgdUpdate(update.sgd, head_sum_, update.samples, std::span(weights_).subspan(own_),
                          std::span(velocity_).subspan(own_), train_.update_threads);
}

std::int64_t VirtualExecutor::ActivationBytes(std::int64_t samples) const {
  return 2 * samples * graph::Count(options_.merged_head->halves.head.input_shape()) *
         static_cast<std::int64_t>(sizeof(float));
}

double VirtualExecutor::SendHead() {
  const std::size_t bytes = (weights_.size() - own_) * sizeof(float);
  double sent = 0.0, slowest = 0.0;
  for (std::size_t i = 0; i < options_.devices.size(); ++i) {
    if (lost_at_[i]) continue;
    weight_bytes_ += static_cast<std::int64_t>(bytes);
    sent += static_cast<double>(bytes) / options_.server_bytes_per_second;
    slowest = std::max(slowest, static_cast<double>(bytes) / options_.devices[i].bytes_per_second);
  }
  return options_.latency_seconds + std::max(sent, slowest);
}

}  // namespace motley::sim
