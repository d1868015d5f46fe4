#include "apps/motley/train_plan.h"

#include <ctime>
#include <utility>

#include "motley/cluster/coordinator.h"

namespace motley::app {
namespace {

using base::Result;

std::int64_t CommittedSamples(const run::TrainState& state) {
  std::int64_t samples = 0;
  for (const auto& [begin, end] : state.committed) samples += end - begin;
  return samples;
}

// What only the data can tell is taken to be as it was: it is not here, but hardly another.
void AssumeSameData(const JobFacts& before, const Job::Data& job, JobFacts& now) {
  const std::pair<const char*, bool> told_by_data[] = {{"data.train_sha256", true},
                                                       {"data.test_sha256", true},
                                                       {"data.mean", job.mean.empty()},
                                                       {"data.std", job.std.empty()}};
  for (const auto& [fact, by_data] : told_by_data) {
    const auto was = before.find(fact);
    if (by_data && was != before.end()) now[fact] = was->second;
  }
}

Result<run::TrainState> LoadState(const ResumePoint& point, const ResolvedJob& resolved,
                                  const Prepared& prepared, bool note_rounding,
                                  ProgressView& view) {
  MOTLEY_ASSIGN_OR_RETURN(const run::TrainState manifest, run::LoadManifest(point.checkpoint));
  for (const std::string& reason : point.passed_over) view.Line("warning: passed over: " + reason);
  JobFacts now = prepared.facts;
  if (prepared.stand_in) AssumeSameData(manifest.job, resolved.job.data, now);
  MOTLEY_RETURN_IF_ERROR(CheckSameJob(manifest.job, resolved, now));
  MOTLEY_ASSIGN_OR_RETURN(run::TrainState state,
                          run::LoadCheckpoint(point.checkpoint, prepared.model.graph));
  const auto before = state.job.find("device.threads");
  const std::string& threads = prepared.facts.at("device.threads");
  if (note_rounding && before != state.job.end() && before->second != threads) {
    view.Line(
        fmt::format("note: the run had device.threads = {} and goes on with {}: the result "
                    "is as good, but not bit for bit that of one uninterrupted run",
                    before->second, threads));
  }
  if (DropChoicesOfAnotherCpu(state, prepared.facts.at("device.cpu")) && note_rounding) {
    view.Line(
        fmt::format("note: the run was on another CPU ({}): kernels are chosen anew, and the "
                    "result is not bit for bit that of one uninterrupted run",
                    state.job.at("device.cpu")));
  }
  view.Line(fmt::format("resuming {} at step {} ({} samples into epoch {})",
                        point.files.folder.string(), state.step, CommittedSamples(state),
                        state.epoch + 1));
  return state;
}

// The job of these arguments; that of the resumed run when they name none.
Result<ResolvedJob> LoadJobOf(const RunArgs& args, const Environment& environment,
                              const std::optional<ResumePoint>& point) {
  JobSources sources{.file = args.job, .sets = args.sets, .environment = environment};
  // A resumed run is the same job unless told otherwise.
  if (args.job.empty() && point && std::filesystem::exists(point->files.job())) {
    sources.file = point->files.job().string();
  }
  return LoadJob(sources);
}

int DeviceThreads(const TrainPlan& plan) {
  return std::stoi(plan.prepared.facts.at("device.threads"));
}

}  // namespace

Result<TrainPlan> MakePlan(const RunArgs& args, const PlanOptions& options,
                           const Environment& environment, ProgressView& view) {
  MOTLEY_ASSIGN_OR_RETURN(const auto point, FindResumePoint(args.resume, args.out, kRuns));
  MOTLEY_ASSIGN_OR_RETURN(ResolvedJob resolved, LoadJobOf(args, environment, point));
  RunFiles files{args.out.empty()
                     ? DefaultRunFolder(kRuns, std::time(nullptr), ModelName(resolved.job))
                     : std::filesystem::path(args.out)};
  if (point) files = point->files;
  const bool restart = args.resume == "auto";
  // Before the data is opened, because that may take a while.
  if (!point) MOTLEY_RETURN_IF_ERROR(CheckFree(files, restart));
  MOTLEY_ASSIGN_OR_RETURN(const std::filesystem::path cache, DataCache(environment));
  MOTLEY_ASSIGN_OR_RETURN(
      Prepared prepared,
      Prepare(resolved, {.cache = cache,
                         .fetch = options.fetch,
                         .load_weights = !point,
                         .onnx_copy = point ? point->files.onnx() : std::filesystem::path(),
                         .on_progress = [&](const std::string& text) { view.Line(text); }}));
  const Job::Cluster& cluster = resolved.job.cluster;
  if (cluster.merged_head) {
    auto split = cluster::SplitForMergedHead(prepared.model.graph, resolved.job.train.bn_batch,
                                             cluster.trusted_network && cluster.groups == 1);
    if (!split.ok()) {
      return std::move(split).status().In(resolved.Place("cluster.merged_head"));
    }
  }
  auto cut = cluster::CheckShards(static_cast<int>(cluster.shards), prepared.model.graph,
                                  cluster.trusted_network, cluster.merged_head);
  if (!cut.ok()) return std::move(cut).In(resolved.Place("cluster.shards"));
  std::optional<run::TrainState> resumed;
  if (point) {
    MOTLEY_ASSIGN_OR_RETURN(resumed,
                            LoadState(*point, resolved, prepared, options.note_rounding, view));
  }
  return TrainPlan{.resolved = std::move(resolved),
                   .prepared = std::move(prepared),
                   .files = std::move(files),
                   .restart = restart,
                   .sysfs = args.sysfs,
                   .checkpoint = point ? point->checkpoint : std::filesystem::path(),
                   .resumed = std::move(resumed)};
}

bool DropChoicesOfAnotherCpu(run::TrainState& state, const std::string& cpu) {
  const auto measured_on = state.job.find("device.cpu");
  if (measured_on == state.job.end() || measured_on->second == cpu) return false;
  state.kernel_choices.clear();
  return true;
}

Result<RunLock> TakeRunDirectory(const TrainPlan& plan) {
  MOTLEY_ASSIGN_OR_RETURN(RunLock lock, RunLock::Take(plan.files));
  if (!plan.resumed) {
    MOTLEY_RETURN_IF_ERROR(CheckFree(plan.files, plan.restart));
    return lock;
  }
  MOTLEY_ASSIGN_OR_RETURN(const auto newest, run::FindCheckpoint(plan.files.checkpoints()));
  if (newest == plan.checkpoint) return lock;
  return base::Unavailable("{}: another process has written {} meanwhile",
                           plan.files.folder.string(), newest.string())
      .WithFix("start the same command again");
}

run::TrainState BeginningOf(const TrainPlan& plan) {
  if (plan.resumed) return *plan.resumed;
  return run::Trainer::Fresh(plan.prepared.model, *plan.prepared.data.train);
}

Result<run::TrainOptions> MakeOptions(const TrainPlan& plan) {
  const Job& job = plan.resolved.job;
  run::TrainOptions options;
  options.batch = job.train.batch;
  options.sgd = {.learning_rate = static_cast<float>(job.train.learning_rate),
                 .momentum = static_cast<float>(job.train.momentum),
                 .weight_decay = static_cast<float>(job.train.weight_decay),
                 .nesterov = job.train.nesterov};
  MOTLEY_ASSIGN_OR_RETURN(options.schedule,
                          optim::Schedule::Parse(ScheduleText(job), job.train.warmup_steps));
  options.seed = static_cast<std::uint64_t>(job.train.seed);
  options.epochs = EpochLimit(job);
  options.target_accuracy = job.train.target_accuracy;
  options.max_seconds = job.train.max_seconds;
  options.train_transform = plan.prepared.train_transform;
  options.test_transform = plan.prepared.test_transform;
  options.loader_threads = static_cast<int>(job.data.threads);
  options.update_threads = DeviceThreads(plan);
  options.checkpoints = plan.files.checkpoints();
  options.checkpoint_seconds = job.checkpoint.every_seconds;
  options.keep_checkpoints = static_cast<int>(job.checkpoint.keep);
  options.job = plan.prepared.facts;
  return options;
}

}  // namespace motley::app
