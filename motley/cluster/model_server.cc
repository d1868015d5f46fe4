#include "motley/cluster/model_server.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "motley/base/check.h"
#include "motley/run/update.h"

namespace motley::cluster {
namespace {

std::size_t Size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

// The step of a group, and where its sum stands.
struct ModelServer::Open {
  struct PartSum {
    std::mutex mutex;
    std::size_t summed = 0;          // contributors
    std::int64_t samples = 0;        // of all who are here
    std::vector<double> squared;     // by contributor
    std::vector<std::int64_t> told;  // to the host of this part, by contributor; none: summed here
    double total_squared = 0.0;
    std::vector<std::string> waiting;  // of contributors whose turn has not come
    std::vector<bool> seen;
  };

  explicit Open(int parts) {
    for (int i = 0; i < parts; ++i) sums.push_back(std::make_unique<PartSum>());
  }

  void NoteNotFinite(const std::string& what) {
    const std::lock_guard lock(not_finite_mutex);
    if (not_finite.empty()) not_finite = what;
  }

  bool active = false;
  Step step;
  std::vector<std::unique_ptr<std::atomic<std::int64_t>>> done;  // by contributor; -1: not said
  std::vector<float> sum;
  std::vector<std::unique_ptr<PartSum>> sums;
  std::atomic<int> final_parts{0}, buffer_parts_left{0};
  std::mutex not_finite_mutex;
  std::string not_finite;
};

ModelServer::ModelServer(const graph::Graph& graph, std::vector<float> weights,
                         std::vector<float> velocity, const std::vector<float>& buffers,
                         int update_threads, int ranges)
    : graph_(&graph),
      parts_(graph.parameter_count(), graph.buffer_count(), ranges),
      parameters_(weights.size()),
      update_threads_(update_threads),
      velocity_(std::move(velocity)) {
  weights.insert(weights.end(), buffers.begin(), buffers.end());
  Replace(std::move(weights), std::move(velocity_));
}

ModelServer::ModelServer(std::vector<float> weights, std::vector<float> velocity)
    : graph_(nullptr),
      parts_(std::ssize(weights), /*buffers=*/0),
      parameters_(weights.size()),
      update_threads_(1) {
  Replace(std::move(weights), std::move(velocity));
}

ModelServer::~ModelServer() = default;

std::span<const float> ModelServer::weights() const {
  return std::span(*model_).first(parameters_);
}

std::span<const float> ModelServer::buffers() const {
  return std::span(*model_).subspan(parameters_);
}

void ModelServer::Replace(std::vector<float> model, std::vector<float> velocity) {
  for (const auto& [group, open] : open_) MOTLEY_CHECK(!open->active, "a step is open");
  MOTLEY_CHECK(model.size() == Size(parts_.floats()) && velocity.size() == parameters_,
               "a model of {} and a velocity of {} floats", model.size(), velocity.size());
  model_ = std::make_shared<const std::vector<float>>(std::move(model));
  velocity_ = std::move(velocity);
}

std::shared_ptr<std::vector<float>> ModelServer::TakeSpare() {
  std::unique_ptr<std::vector<float>> array;
  {
    const std::lock_guard lock(spares_->mutex);
    if (!spares_->arrays.empty()) {
      array = std::move(spares_->arrays.back());
      spares_->arrays.pop_back();
    }
  }
  if (array == nullptr) array = std::make_unique<std::vector<float>>(model_->size());
  // A slow reader may still be sending what was the model two steps ago: arrays come back when the
  // last reader lets go of them.
  return {array.release(), [spares = spares_](std::vector<float>* raw) {
            std::unique_ptr<std::vector<float>> back(raw);
            const std::lock_guard lock(spares->mutex);
            if (spares->arrays.size() < 2) spares->arrays.push_back(std::move(back));
          }};
}

void ModelServer::Begin(int group, Step step) {
  const std::unique_lock lock(open_mutex_);
  std::unique_ptr<Open>& place = open_[group];
  if (place == nullptr) place = std::make_unique<Open>(parts_.count());
  Open& open = *place;
  MOTLEY_CHECK(!open.active && !step.contributors.empty() && step.samples > 0,
               "not a step to begin");
  last_generation_ = std::max(last_generation_, step.key.generation);
  open.step = std::move(step);
  const std::size_t count = open.step.contributors.size();
  open.sum.resize(model_->size());
  open.done.clear();
  for (std::size_t i = 0; i < count; ++i) {
    open.done.push_back(std::make_unique<std::atomic<std::int64_t>>(-1));
  }
  for (const auto& part : open.sums) {
    part->summed = 0;
    part->samples = 0;
    part->total_squared = 0.0;
    part->squared.assign(count, 0.0);
    part->waiting.assign(count, {});
    part->seen.assign(count, false);
    part->told.clear();
  }
  open.final_parts = 0;
  open.buffer_parts_left = parts_.count() - parts_.parameter_parts();
  open.not_finite.clear();
  open.active = true;
  if (!open.step.on_part) return;
  next_ = TakeSpare();
  next_velocity_.resize(parameters_);
}

std::optional<std::size_t> ModelServer::PlaceOf(
    const std::string& name, const std::vector<Step::Contributor>& contributors) {
  const auto found = std::find_if(contributors.begin(), contributors.end(),
                                  [&](const auto& one) { return one.name == name; });
  if (found == contributors.end()) return std::nullopt;
  return static_cast<std::size_t>(found - contributors.begin());
}

ModelServer::Open* ModelServer::StepOf(const std::string& contributor, std::size_t& index) const {
  for (const auto& [group, open] : open_) {
    if (!open->active) continue;
    const auto place = PlaceOf(contributor, open->step.contributors);
    if (!place) continue;
    index = *place;
    return open.get();
  }
  return nullptr;
}

ModelServer::Open& ModelServer::StepOf(int group) const {
  const auto found = open_.find(group);
  MOTLEY_CHECK(found != open_.end() && found->second->active, "group {} has no step", group);
  return *found->second;
}

base::Result<bool> ModelServer::Add(const std::string& contributor, const StepKey& key,
                                    std::int64_t offset, std::int64_t samples, std::string floats) {
  const std::shared_lock lock(open_mutex_);
  std::size_t who = 0;
  Open* const open = StepOf(contributor, who);
  const bool present = std::any_of(open_.begin(), open_.end(), [&](const auto& one) {
    return one.second->active && one.second->step.key == key;
  });
  const bool over =
      open != nullptr ? key < open->step.key : !present && key.generation <= last_generation_;
  if (over) return false;
  if (open == nullptr || key != open->step.key) {
    return base::InvalidInput("a gradient of step {}, generation {}, in which it has no share",
                              key.step, key.generation);
  }
  const std::int64_t told = open->step.contributors[who].samples;
  if (samples < 0 || samples > told) {
    return base::InvalidInput("a gradient over {} of {} samples", samples, told);
  }
  MOTLEY_ASSIGN_OR_RETURN(const int index, Check(offset, floats));
  if (!HostOf(*open, index).empty()) {
    return base::InvalidInput("the gradient at {}, which belongs to a shard elsewhere", offset);
  }
  std::int64_t said = -1;
  if (!open->done[who]->compare_exchange_strong(said, samples) && said != samples) {
    return base::InvalidInput("a gradient over {} samples, and then over {}", said, samples);
  }
  Open::PartSum& part = *open->sums[Size(index)];
  const std::lock_guard part_lock(part.mutex);
  if (part.seen[who]) return base::InvalidInput("the gradient at {} twice", offset);
  part.seen[who] = true;
  part.samples += samples;
  Sum(*open, index, who, std::move(floats));
  return true;
}

base::Result<int> ModelServer::Check(std::int64_t offset, const std::string& floats) const {
  if (floats.size() % sizeof(float) != 0) {
    return base::InvalidInput("{} bytes are no floats", floats.size());
  }
  const auto count = static_cast<std::int64_t>(floats.size() / sizeof(float));
  MOTLEY_ASSIGN_OR_RETURN(const int index, parts_.Find(offset, count));
  if (!run::AllFinite(FloatsOf(floats))) {
    return base::InvalidInput("a gradient with a number that is not finite, between {} and {}",
                              offset, offset + count);
  }
  return index;
}

const std::string& ModelServer::HostOf(const Open& open, int index) const {
  static const std::string kHere;
  const auto range = Size(parts_.RangeOf(index));
  return range < open.step.hosts.size() ? open.step.hosts[range] : kHere;
}

base::Result<bool> ModelServer::AddSum(const std::string& host, const StepKey& key,
                                       std::int64_t offset,
                                       const std::vector<plan::GradientNorm>& of,
                                       std::string floats) {
  const std::shared_lock lock(open_mutex_);
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const auto& one) {
    return one.second->active && one.second->step.key == key;
  });
  if (found == open_.end()) {
    if (key.generation <= last_generation_) return false;
    return base::InvalidInput("a sum of step {}, generation {}, which has not begun", key.step,
                              key.generation);
  }
  Open& open = *found->second;
  MOTLEY_ASSIGN_OR_RETURN(const int index, Check(offset, floats));
  if (host.empty() || HostOf(open, index) != host) {
    return base::InvalidInput("the sum at {}, which it does not make", offset);
  }
  const auto& contributors = open.step.contributors;
  bool fits = of.size() == contributors.size();
  std::int64_t samples = 0;
  for (std::size_t i = 0; fits && i < of.size(); ++i) {
    fits = of[i].samples >= 0 && of[i].samples <= contributors[i].samples && of[i].squared >= 0.0 &&
           std::isfinite(of[i].squared);
    samples += of[i].samples;
  }
  if (!fits) return base::InvalidInput("a sum of gradients that nobody was told to make");
  Open::PartSum& part = *open.sums[Size(index)];
  const std::lock_guard part_lock(part.mutex);
  if (!part.told.empty()) return base::InvalidInput("the sum at {} twice", offset);
  for (std::size_t i = 0; i < of.size(); ++i) {
    part.told.push_back(of[i].samples);
    part.squared[i] = of[i].squared;
  }
  part.samples = samples;
  const std::span<const float> values = FloatsOf(floats);
  std::memcpy(open.sum.data() + offset, values.data(), values.size_bytes());
  part.total_squared = plan::SquaredNorm(values);
  Finish(open, index);
  return true;
}

std::string ModelServer::Contradicting(int group) const {
  const Open& open = StepOf(group);
  for (const auto& part : open.sums) {
    for (std::size_t i = 0; i < part->told.size(); ++i) {
      if (part->told[i] != *open.done[i]) return open.step.contributors[i].name;
    }
  }
  return {};
}

std::vector<std::string> ModelServer::Owing(int group) const {
  const std::shared_lock lock(open_mutex_);
  const Open& open = StepOf(group);
  std::vector<std::string> owing;
  for (int i = 0; i < parts_.count(); ++i) {
    const std::string& host = HostOf(open, i);
    if (host.empty() || std::find(owing.begin(), owing.end(), host) != owing.end()) continue;
    const std::lock_guard part_lock(open.sums[Size(i)]->mutex);
    if (open.sums[Size(i)]->told.empty()) owing.push_back(host);
  }
  return owing;
}

// Requires the part's mutex.
void ModelServer::Sum(Open& open, int index, std::size_t contributor, std::string floats) {
  Open::PartSum& part = *open.sums[Size(index)];
  part.waiting[contributor] = std::move(floats);
  float* const sum = open.sum.data() + parts_[index].offset;
  for (; part.summed < part.waiting.size() && part.seen[part.summed]; ++part.summed) {
    const std::string bytes = std::exchange(part.waiting[part.summed], {});
    const std::span<const float> values = FloatsOf(bytes);
    if (index < parts_.parameter_parts()) part.squared[part.summed] = plan::SquaredNorm(values);
    if (part.summed == 0) {
      std::memcpy(sum, values.data(), values.size_bytes());
    } else {
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  }
  if (part.summed < part.waiting.size()) return;
  const auto size = Size(parts_[index].size);
  if (index < parts_.parameter_parts())
    part.total_squared = plan::SquaredNorm(std::span(sum, size));
  Finish(open, index);
  if (!open.step.on_sum) return;
  // Last: who gets the last sum may ask for the commit at once.
  std::vector<plan::GradientNorm> of;
  for (std::size_t i = 0; i < part.squared.size(); ++i) {
    of.push_back({*open.done[i], part.squared[i]});
  }
  open.step.on_sum(index, std::span<const float>(sum, size), of);
}

void ModelServer::Finish(Open& open, int index) {
  if (!open.step.on_part) {
    NotePart(open, index);
  } else if (index < parts_.parameter_parts()) {
    UpdatePart(open, Size(parts_[index].offset), Size(parts_[index].size),
               open.sums[Size(index)]->samples, /*threads=*/1);
    NotePart(open, index);
  } else if (--open.buffer_parts_left == 0) {
    UpdateStatistics(open, open.sums[Size(index)]->samples);
    for (int one = parts_.parameter_parts(); one < parts_.count(); ++one) NotePart(open, one);
  }
}

void ModelServer::UpdatePart(Open& open, std::size_t offset, std::size_t size, std::int64_t samples,
                             int threads) {
  const auto weights = std::span(*next_).subspan(offset, size);
  const auto velocity = std::span(next_velocity_).subspan(offset, size);
  const auto begin = static_cast<std::ptrdiff_t>(offset);
  std::copy_n(model_->begin() + begin, size, weights.begin());
  std::copy_n(velocity_.begin() + begin, size, velocity.begin());
  const auto sum = std::span<const float>(open.sum).subspan(offset, size);
  // Without a single sample there is no step to make.
  const auto sgd = run::ForFewer(open.step.sgd, samples, open.step.samples);
  if (samples > 0 && !optim::SgdUpdate(sgd, sum, samples, weights, velocity, threads)) {
    open.NoteNotFinite("a weight");
  }
}

void ModelServer::UpdateStatistics(Open& open, std::int64_t samples) {
  const auto buffers = std::span(*next_).subspan(parameters_);
  std::copy(model_->begin() + static_cast<std::ptrdiff_t>(parameters_), model_->end(),
            buffers.begin());
  if (samples == 0 || graph_ == nullptr) return;
  open.NoteNotFinite(run::UpdateBuffers(
      *graph_, std::span<const float>(open.sum).subspan(parameters_), samples, buffers));
}

void ModelServer::NotePart(Open& open, int index) {
  if (open.step.on_part) open.step.on_part(index, next_);
  if (++open.final_parts == parts_.count() && open.step.on_complete) open.step.on_complete();
}

bool ModelServer::Complete(int group) const {
  const std::shared_lock lock(open_mutex_);
  return StepOf(group).final_parts == parts_.count();
}

std::string ModelServer::Prepare(int group) {
  Open& open = StepOf(group);
  MOTLEY_CHECK(open.final_parts == parts_.count(), "the step is not complete");
  if (!open.step.on_part) {
    next_ = TakeSpare();
    next_velocity_.resize(parameters_);
    const std::int64_t samples = open.sums.front()->samples;
    UpdatePart(open, 0, parameters_, samples, update_threads_);
    UpdateStatistics(open, samples);
  }
  const std::lock_guard lock(open.not_finite_mutex);
  return open.not_finite;
}

void ModelServer::Commit(int group) {
  const std::unique_lock lock(open_mutex_);
  Open& open = StepOf(group);
  MOTLEY_CHECK(next_ != nullptr && open.final_parts == parts_.count(), "the step is not ready");
  open.active = false;
  open.step = {};
  model_ = std::move(next_);
  next_ = nullptr;
  std::swap(velocity_, next_velocity_);
}

void ModelServer::Discard(int group) {
  const std::unique_lock lock(open_mutex_);
  const auto found = open_.find(group);
  if (found == open_.end()) return;
  if (found->second->active && found->second->step.on_part) next_ = nullptr;
  open_.erase(found);
}

ModelServer::Norms ModelServer::norms(int group) const {
  const Open& open = StepOf(group);
  Norms norms;
  for (const auto& done : open.done) {
    norms.contributors.push_back({std::max<std::int64_t>(0, *done), 0.0});
  }
  for (const auto& part : open.sums) {
    for (std::size_t i = 0; i < part->squared.size(); ++i) {
      norms.contributors[i].squared += part->squared[i];
    }
    norms.total_squared += part->total_squared;
  }
  return norms;
}

std::span<const float> ModelServer::sum(int group) const {
  return std::span<const float>(StepOf(group).sum).first(parameters_);
}

bool ModelServer::HasAll(const std::string& contributor) const {
  const std::shared_lock lock(open_mutex_);
  std::size_t who = 0;
  const Open* const open = StepOf(contributor, who);
  if (open == nullptr) return true;
  for (int i = 0; i < parts_.count(); ++i) {
    if (!HostOf(*open, i).empty()) continue;
    const std::lock_guard part_lock(open->sums[Size(i)]->mutex);
    if (!open->sums[Size(i)]->seen[who]) return false;
  }
  return true;
}

std::int64_t ModelServer::SamplesOf(const std::string& contributor) const {
  const std::shared_lock lock(open_mutex_);
  std::size_t who = 0;
  const Open* const open = StepOf(contributor, who);
  return open == nullptr ? 0 : std::max<std::int64_t>(0, *open->done[who]);
}

}  // namespace motley::cluster
