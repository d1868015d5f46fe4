#ifndef MOTLEY_APPS_MOTLEY_CLUSTER_RUN_H_
#define MOTLEY_APPS_MOTLEY_CLUSTER_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/motley/cluster_folder.h"
#include "apps/motley/progress.h"
#include "apps/motley/train_plan.h"
#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/cluster/coordinator.h"
#include "motley/plan/controller.h"

namespace motley::app {

// The controller that train.tune and train.objective ask for. The clock outlives it.
std::unique_ptr<plan::Controller> MakeController(const Job& job, const data::Dataset& train,
                                                 const run::TrainState& state,
                                                 const base::Clock& clock);

// What of the private samples of the job's devices (`private_samples`, in the order of DevicesOf)
// does not fit into its plan, for people: by the speeds that the job states, because nothing was
// measured yet. Empty when all of them fit, and when nobody can tell: with devices of several
// kinds, or shares that do not depend on speeds.
std::string WhatDoesNotFit(const Job& job, const data::Dataset& train,
                           const std::vector<std::int64_t>& private_samples);

// Refuses shards of the model where there are no workers of other processes that could hold them.
base::Status RefuseShards(const ResolvedJob& resolved);

// One life of a job on several devices: those that it lists, in this process, and those of other
// machines if it listens.
struct ClusterRun {
  const TrainPlan& plan;
  const Environment& environment;
  ProgressView& view;
  ClusterFolder& folder;
  std::string command;  // that goes on with the run
  bool json = false;
  // What the coordinator is told beyond the job: where to listen, and how safely.
  cluster::CoordinatorOptions options;
  // When it listens; may be empty.
  std::function<base::Status(int port)> on_listening;

  // From the run directory to the last worker's farewell; the exit code.
  base::Result<int> Run();
};

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_CLUSTER_RUN_H_
