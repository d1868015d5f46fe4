#ifndef MOTLEY_APPS_MOTLEY_DEVICES_H_
#define MOTLEY_APPS_MOTLEY_DEVICES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "apps/motley/console.h"
#include "apps/motley/train_plan.h"
#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/cluster/worker.h"
#include "motley/engine/device.h"
#include "motley/engine/throttled.h"
#include "motley/plan/energy.h"

namespace motley::app {

// A device of the kind that the job names, as slow as the job wants it. `options` has what does not
// depend on the kind; the clock outlives the device.
base::Result<std::unique_ptr<engine::Device>> MakeDevice(
    const Job::Device& wanted, const engine::Pace& pace,
    const std::shared_ptr<const graph::Graph>& graph, engine::DeviceOptions options,
    const base::Clock& clock);

// How fast an emulated device is, with the job's interruptions counted from `start` on the clock.
engine::Pace PaceOf(const Job& job, const Job::Device& device, double start);

int ThreadsOf(const Job::Device& device);
std::optional<plan::PowerProfile> PowerOf(const Job::Device& device);

// The device of a job that has one. The clock outlives it.
base::Result<std::unique_ptr<engine::Device>> MakeOnlyDevice(const TrainPlan& plan,
                                                             const Environment& environment,
                                                             const base::Clock& clock);

// Whether one plain device of this process does it all, so that nothing has to be shared.
bool IsOneDevice(const Job& job);

// The training samples that only this device may see, opened and checked against the job's; null
// when it has none. Messages name the key.
base::Result<std::shared_ptr<const data::Dataset>> OpenPrivate(const TrainPlan& plan,
                                                               const Job::Device& device,
                                                               const Environment& environment);

// The devices of the job as workers of this process: made and checked, so that what is wrong with
// them is said before a run begins. `private_samples` becomes how many each of them has. The clock
// outlives them.
base::Result<std::vector<cluster::WorkerOptions>> OwnWorkers(
    const TrainPlan& plan, const Environment& environment, const base::Clock& clock,
    std::vector<std::int64_t>& private_samples);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_DEVICES_H_
