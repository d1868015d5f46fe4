#include "motley/run/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "motley/base/cpu.h"
#include "motley/base/file.h"
#include "motley/base/rng.h"
#include "motley/run/memory.h"

namespace motley::run {
namespace {

using nlohmann::json;

// A cached curve is believed when the device still is within so much of it.
constexpr double kAgree = 0.15;
// Of the memory that is free, for one step.
constexpr double kMemoryPart = 0.8;
constexpr std::uint64_t kLargestCache = 1 << 20;

// Time does not depend on what the numbers are, as long as they stay ordinary ones.
struct Material {
  Material(const graph::Graph& graph, std::int64_t samples) {
    base::Rng rng(base::Key({1, 2}));
    const auto number = [&] { return static_cast<float>(rng.Below(2001)) / 1000.0F - 1.0F; };
    weights.resize(static_cast<std::size_t>(graph.parameter_count()));
    for (float& weight : weights) weight = 0.05F * number();
    gradient.resize(weights.size());
    sums.resize(static_cast<std::size_t>(graph.buffer_count()));
    pixels = static_cast<std::size_t>(graph::Count(graph.input_shape()));
    images.resize(pixels * static_cast<std::size_t>(samples));
    for (float& pixel : images) pixel = number();
  }
  data::Batch Take(std::int64_t samples) const {
    data::Batch batch;
    const auto n = static_cast<std::size_t>(samples);
    batch.images.assign(images.begin(), images.begin() + static_cast<std::ptrdiff_t>(n * pixels));
    batch.labels.assign(n, 0);
    batch.ids.resize(n);
    for (std::size_t i = 0; i < n; ++i) batch.ids[i] = i;
    return batch;
  }
  std::size_t pixels = 0;
  std::vector<float> weights, gradient, sums, images;
};

base::Result<double> TimeStep(engine::Device& device, Material& material, const data::Batch& batch,
                              const std::atomic<bool>* cancel) {
  engine::StepRequest request;
  request.weights = material.weights;
  request.batch = &batch;
  request.cancel = cancel;
  request.gradient = material.gradient;
  request.buffer_sums = material.sums;
  request.on_boundary = [](const engine::Crossing& crossing) {
    std::copy(crossing.activations.begin(), crossing.activations.end(), crossing.gradient.begin());
    return true;
  };
  MOTLEY_ASSIGN_OR_RETURN(const engine::StepResult result, device.Step(request));
  return result.seconds;
}

// What one of the devices here may take of the memory that is left.
double FreeForOne(const ProbeOptions& options) {
  return kMemoryPart * FreeBytes(options.root) / options.devices_here;
}

// The samples that fit when those of `size` are in memory and each more takes so many bytes.
std::int64_t MemoryCap(std::int64_t size, double bytes_per_sample, const ProbeOptions& options) {
  if (bytes_per_sample <= 0.0) return plan::kNoCap;
  const double possible = FreeForOne(options) / bytes_per_sample;
  if (!(possible < static_cast<double>(options.batch))) return plan::kNoCap;
  return size + static_cast<std::int64_t>(possible);
}

// Sizes from the smallest share to the batch, four times larger each.
std::vector<std::int64_t> SizesOf(const ProbeOptions& options) {
  std::vector<std::int64_t> sizes;
  const std::int64_t unit = options.multiple;
  const std::int64_t first = std::max(unit, (4 + unit - 1) / unit * unit);
  for (std::int64_t size = first; size < options.batch; size *= 4) sizes.push_back(size);
  if (options.batch >= 1) sizes.push_back(std::max(unit, options.batch / unit * unit));
  if (sizes.size() < 2) sizes.insert(sizes.begin(), unit);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (sizes.size() < 2) sizes.push_back(2 * sizes.front());
  return sizes;
}

// Held by the one device of this process that takes memory.
std::mutex& GrowingMutex() {
  static std::mutex mutex;
  return mutex;
}

base::Result<Probed> Measure(engine::Device& device, const ProbeOptions& options,
                             const base::Clock& clock) {
  Probed probed;
  const std::vector<std::int64_t> sizes = SizesOf(options);
  double began = clock.Now();
  double last_seconds = 0.0;
  double grown = 0.0;                // bytes, since the smallest size
  std::int64_t fits = plan::kNoCap;  // by the memory that is left
  std::optional<Material> material;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double left = options.seconds - (clock.Now() - began);
    // The third size and later ones only if they fit into the time: a step four times as large,
    // three times.
    const double expected = i == 0 ? 0.0
                                   : 3.0 * last_seconds * static_cast<double>(sizes[i]) /
                                         static_cast<double>(sizes[i - 1]);
    if (i >= 2 && (expected > left || sizes[i] > fits)) break;
    if (options.on_progress) {
      options.on_progress(fmt::format("probing this device: {} samples at once", sizes[i]));
    }
    // What the process grows by belongs to the device that takes its first step of a size now.
    const double asked = clock.Now();
    std::unique_lock growing(GrowingMutex());
    began += clock.Now() - asked;
    const double before = ResidentBytes(options.root);
    material.emplace(device.graph(), sizes[i]);
    const data::Batch batch = material->Take(sizes[i]);
    const auto warm = TimeStep(device, *material, batch, options.cancel);
    if (i > 0) grown += ResidentBytes(options.root) - before;
    growing.unlock();
    if (!warm.ok()) {
      // Too large for its memory: smaller ones are known to work.
      if (warm.status().code() != base::Code::kUnavailable || i < 2) return warm.status();
      probed.tried_cap = sizes[i - 1];
      break;
    }
    // A device may measure its kernels first, which takes as long as it takes.
    if (i == 0) began = clock.Now();
    const double part = std::max(0.05, options.seconds / (2.0 * static_cast<double>(sizes.size())));
    const double until = clock.Now() + part;
    for (int round = 0; round < 2 || (round < 8 && clock.Now() < until); ++round) {
      MOTLEY_ASSIGN_OR_RETURN(last_seconds, TimeStep(device, *material, batch, options.cancel));
      probed.timings.push_back({sizes[i], std::max(last_seconds, 1e-9)});
      if (round >= 1 && clock.Now() - began > 2.0 * options.seconds) break;
    }
    if (i == 0) continue;
    probed.bytes_per_sample = std::max(0.0, grown / static_cast<double>(sizes[i] - sizes[0]));
    fits = MemoryCap(sizes[i], probed.bytes_per_sample, options);
  }
  probed.cap = std::min(probed.tried_cap, fits);
  return probed;
}

json ToJson(const Probed& probed) {
  json timings = json::array();
  for (const plan::Timing& timing : probed.timings) {
    timings.push_back({timing.samples, timing.seconds});
  }
  return {{"timings", timings},
          {"cap", probed.tried_cap},
          {"bytes_per_sample", probed.bytes_per_sample}};
}

std::optional<Probed> FromJson(const json& one) {
  const auto timings = one.find("timings");
  if (!one.is_object() || timings == one.end() || !timings->is_array()) return std::nullopt;
  Probed probed;
  probed.cached = true;
  const auto cap = one.find("cap"), bytes = one.find("bytes_per_sample");
  if (cap == one.end() || !cap->is_number_integer()) return std::nullopt;
  if (bytes == one.end() || !bytes->is_number()) return std::nullopt;
  probed.tried_cap = cap->get<std::int64_t>();
  probed.bytes_per_sample = bytes->get<double>();
  if (probed.tried_cap <= 0 || !(probed.bytes_per_sample >= 0.0)) return std::nullopt;
  for (const json& pair : *timings) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() ||
        !pair[1].is_number()) {
      return std::nullopt;
    }
    probed.timings.push_back({pair[0].get<std::int64_t>(), pair[1].get<double>()});
  }
  return probed;
}

json ReadCache(const std::filesystem::path& file) {
  const auto text = base::ReadFile(file, kLargestCache);
  if (!text.ok()) return json::object();
  json cache = json::parse(*text, nullptr, false);
  return cache.is_object() ? cache : json::object();
}

// Whether the device is still as fast as the curve says, by the largest of its sizes that is
// quick, and small, enough to try. Finds anew how many samples fit into the memory that there is
// now.
base::Result<bool> Verify(engine::Device& device, Probed& cached, const ProbeOptions& options) {
  const auto curve = plan::FitCurve(cached.timings);
  if (!curve.ok()) return false;
  const std::int64_t largest = SizesOf(options).back();
  for (const plan::Timing& timing : cached.timings) {
    if (timing.samples > largest) return false;
  }
  const double free = FreeForOne(options);
  std::int64_t size = cached.timings.front().samples;
  for (const plan::Timing& timing : cached.timings) {
    const bool fits = cached.bytes_per_sample * static_cast<double>(timing.samples) <= free;
    if (fits && timing.seconds < 0.2 * options.seconds) size = std::max(size, timing.samples);
  }
  if (options.on_progress) options.on_progress("verifying what an earlier probe has found");
  Material material(device.graph(), size);
  const data::Batch batch = material.Take(size);
  double fastest = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 4; ++round) {
    const auto seconds = TimeStep(device, material, batch, options.cancel);
    if (!seconds.ok()) {
      // Not as it was: there may be less memory.
      if (seconds.status().code() == base::Code::kUnavailable) return false;
      return seconds.status();
    }
    if (round > 0) fastest = std::min(fastest, *seconds);
  }
  cached.cap = std::min(cached.tried_cap, MemoryCap(size, cached.bytes_per_sample, options));
  return std::abs(fastest / curve->At(size) - 1.0) < kAgree;
}

}  // namespace

std::string ProbeKey(const engine::Device& device, std::int64_t batch, std::int64_t multiple,
                     int threads) {
  constexpr int kVersion = 1;  // raised when the engine has changed so much that nothing fits
  const graph::Graph& graph = device.graph();
  return fmt::format(
      "{}; {}, {} threads; {} {} with {} parameters; batch {} in multiples of {}; version {}",
      base::CpuModel(), device.kind(), threads, graph.name(), graph::ToString(graph.input_shape()),
      graph.parameter_count(), batch, multiple, kVersion);
}

base::Result<Probed> Probe(engine::Device& device, const ProbeOptions& options,
                           const base::Clock& clock) {
  json cache = options.cache.empty() ? json::object() : ReadCache(options.cache);
  if (const auto found = cache.find(options.key); found != cache.end()) {
    if (auto cached = FromJson(*found); cached && !cached->timings.empty()) {
      MOTLEY_ASSIGN_OR_RETURN(const bool agrees, Verify(device, *cached, options));
      if (agrees) return std::move(*cached);
    }
  }
  MOTLEY_ASSIGN_OR_RETURN(Probed probed, Measure(device, options, clock));
  if (!options.cache.empty()) {
    // Other devices of this process may have written theirs meanwhile.
    static std::mutex writing;
    const std::lock_guard lock(writing);
    cache = ReadCache(options.cache);
    cache[options.key] = ToJson(probed);
    std::error_code error;
    std::filesystem::create_directories(options.cache.parent_path(), error);
    // Without the file the next probe takes its few seconds again.
    (void)base::ReplaceFile(options.cache, cache.dump());
  }
  return probed;
}

}  // namespace motley::run
