#include "apps/motley/devices.h"

#include <utility>

#include "apps/motley/address.h"
#include "apps/motley/data_spec.h"
#include "motley/data/open.h"
#include "motley/engine/native/native_device.h"
#include "motley/engine/torch/torch_loader.h"

namespace motley::app {
namespace {

using base::Result;

// Whether this row of the job file describes the device of that name.
bool Describes(const Job::Device& row, const std::string& name) {
  if (row.count == 1) return name == row.name;
  for (std::int64_t i = 0; i < row.count; ++i) {
    if (name == fmt::format("{}-{}", row.name, i)) return true;
  }
  return false;
}

// "job.toml:4:9: device.private", for the row of the job file that this device came from.
std::string PlaceOf(const ResolvedJob& resolved, const Job::Device& device, const char* key) {
  for (std::size_t row = 0; row < resolved.job.devices.size(); ++row) {
    if (Describes(resolved.job.devices[row], device.name)) {
      return resolved.Place(row == 0 ? fmt::format("device.{}", key)
                                     : fmt::format("device.{}.{}", row, key));
    }
  }
  return fmt::format("device.{}", key);
}

// Where the job file says what cannot be made.
std::string PlaceOfMaking(const ResolvedJob& resolved, const Job::Device& device) {
  return PlaceOf(resolved, device, device.cores.empty() ? "kind" : "cores");
}

}  // namespace

int ThreadsOf(const Job::Device& device) {
  if (!device.cores.empty()) return static_cast<int>(device.cores.size());
  return device.threads > 0 ? static_cast<int>(device.threads) : engine::native::UsableCores();
}

Result<std::unique_ptr<engine::Device>> MakeDevice(const Job::Device& wanted,
                                                   const engine::Pace& pace,
                                                   const std::shared_ptr<const graph::Graph>& graph,
                                                   engine::DeviceOptions options,
                                                   const base::Clock& clock) {
  options.threads = ThreadsOf(wanted);
  options.cores.assign(wanted.cores.begin(), wanted.cores.end());
  MOTLEY_ASSIGN_OR_RETURN(auto device,
                          wanted.kind == "native"
                              ? engine::native::MakeNativeDevice(graph, options)
                              : engine::torch::LoadTorchDevice(graph, options, wanted.kind));
  if (pace.speed == 1.0 && pace.slowdowns.empty()) return device;
  return engine::MakeThrottled(std::move(device), pace, options.threads, clock);
}

Result<std::unique_ptr<engine::Device>> MakeOnlyDevice(const TrainPlan& plan,
                                                       const Environment& environment,
                                                       const base::Clock& clock) {
  const Job& job = plan.resolved.job;
  const Job::Device device = DevicesOf(job).front();
  engine::DeviceOptions options;
  options.bn_batch = job.train.bn_batch;
  options.kernel_cache = KernelCacheFile(environment);
  if (plan.resumed) options.kernel_choices = plan.resumed->kernel_choices;
  auto made =
      MakeDevice(device, PaceOf(job, device, clock.Now()),
                 std::make_shared<const graph::Graph>(plan.prepared.model.graph), options, clock);
  if (!made.ok()) return std::move(made).status().In(PlaceOfMaking(plan.resolved, device));
  return made;
}

engine::Pace PaceOf(const Job& job, const Job::Device& device, double start) {
  engine::Pace pace{.speed = device.speed, .slowdowns = {}};
  for (const Job::Interruption& one : job.interruptions) {
    if (one.device != device.name) continue;
    const double begin = start + one.at_seconds;
    pace.slowdowns.push_back({begin, begin + one.for_seconds, one.slowdown});
  }
  return pace;
}

std::optional<plan::PowerProfile> PowerOf(const Job::Device& device) {
  if (!device.watts_idle) return std::nullopt;
  return plan::PowerProfile{*device.watts_idle, *device.watts_busy};
}

bool IsOneDevice(const Job& job) {
  const std::vector<Job::Device> devices = DevicesOf(job);
  return devices.size() == 1 && devices.front().private_data.empty();
}

Result<std::shared_ptr<const data::Dataset>> OpenPrivate(const TrainPlan& plan,
                                                         const Job::Device& device,
                                                         const Environment& environment) {
  if (device.private_data.empty()) return std::shared_ptr<const data::Dataset>();
  const std::string place = PlaceOf(plan.resolved, device, "private");
  auto spec = DataSpecOf(device.private_data);
  if (!spec.ok()) {
    return base::InvalidInput("{}: there is no folder or file {}", place, device.private_data)
        .WithFix("give a folder with the private samples, or a form of data.train");
  }
  MOTLEY_ASSIGN_OR_RETURN(const std::filesystem::path cache, DataCache(environment));
  auto set = data::OpenLike(*spec, *plan.prepared.data.train,
                            {.cache = cache,
                             .resize_height = plan.resolved.job.data.resize.height,
                             .resize_width = plan.resolved.job.data.resize.width,
                             .fetch = false,
                             .train_place = place});
  // Whatever it is, it is the job file that is wrong.
  if (!set.ok()) {
    return base::InvalidInput("{}", set.status().message()).WithFix(set.status().fix());
  }
  return set;
}

Result<std::vector<cluster::WorkerOptions>> OwnWorkers(const TrainPlan& plan,
                                                       const Environment& environment,
                                                       const base::Clock& clock,
                                                       std::vector<std::int64_t>& private_samples) {
  const Job& job = plan.resolved.job;
  const auto graph = std::make_shared<const graph::Graph>(plan.prepared.model.graph);
  const double start = clock.Now();
  std::vector<cluster::WorkerOptions> workers;
  for (const Job::Device& device : DevicesOf(job)) {
    cluster::WorkerOptions options;
    MOTLEY_ASSIGN_OR_RETURN(options.data_cache, DataCache(environment));
    options.name = device.name;
    options.host = HostName();
    options.device.threads = ThreadsOf(device);
    options.device.bn_batch = job.train.bn_batch;
    options.device.kernel_cache = KernelCacheFile(environment);
    options.loader_threads = static_cast<int>(job.data.threads);
    options.probe_cache = ProbeCacheFile(environment);
    options.power = PowerOf(device);
    options.sysfs = plan.sysfs;
    MOTLEY_ASSIGN_OR_RETURN(const auto secret, OpenPrivate(plan, device, environment));
    private_samples.push_back(secret == nullptr ? 0 : secret->size());
    if (secret != nullptr) {
      MOTLEY_ASSIGN_OR_RETURN(options.private_data, DataSpecOf(device.private_data));
    }
    auto made = MakeDevice(device, PaceOf(job, device, start), graph, options.device, clock);
    if (!made.ok()) return std::move(made).status().In(PlaceOfMaking(plan.resolved, device));
    options.device_name = fmt::format("{}, {} {}", (*made)->kind(), options.device.threads,
                                      options.device.threads == 1 ? "thread" : "threads");
    const auto ready = std::make_shared<std::unique_ptr<engine::Device>>(std::move(made).value());
    // The whole net is asked for first, and with a merged head its body after that.
    options.make_device = [ready, device, pace = PaceOf(job, device, start), &clock](
                              const auto& net,
                              const auto& how) -> Result<std::unique_ptr<engine::Device>> {
      if (*ready != nullptr) return std::move(*ready);
      return MakeDevice(device, pace, net, how, clock);
    };
    workers.push_back(std::move(options));
  }
  return workers;
}

}  // namespace motley::app
