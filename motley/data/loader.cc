#include "motley/data/loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "motley/base/check.h"

namespace motley::data {
namespace {

// A batch on its way. Workers take chunks of it; where a sample lands is fixed by its position, so
// who decodes it does not matter.
struct Job {
  Batch batch;
  std::size_t count = 0;
  std::size_t chunk = 1;
  std::size_t next = 0;      // first sample that nobody has taken
  std::size_t finished = 0;  // samples done
  bool allocating = false, allocated = false;
  // The failure of the lowest position, so that the message does not depend on the threads either.
  std::size_t failed_at = 0;
  base::Status failure;
};

struct Chunk {
  Job* job;
  std::size_t begin, end;
};

}  // namespace

class Loader::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> dataset, Transform transform, LoaderOptions options)
      : dataset_(std::move(dataset)), transform_(std::move(transform)), options_(options) {
    MOTLEY_CHECK(options_.threads > 0, "a loader with {} threads", options_.threads);
    const auto checked = transform_.Check(*dataset_);
    MOTLEY_CHECK(checked.ok(), "{}", checked.message());
    const auto shape = transform_.OutputShape(*dataset_);
    floats_per_sample_ = static_cast<std::size_t>(
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Work(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    threads_.clear();  // joins before the members that the threads use go away
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void Submit(std::vector<SampleId> ids, std::uint64_t epoch) {
    auto job = std::make_unique<Job>();
    job->count = ids.size();
    job->chunk = std::clamp<std::size_t>(
        ids.size() / (4 * static_cast<std::size_t>(options_.threads)), 1, 64);
    job->batch.ids = std::move(ids);
    job->batch.epoch = epoch;
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    work_.notify_all();
  }

  std::int64_t pending() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(jobs_.size());
  }

  base::Result<Batch> Next() {
    std::unique_lock lock(mutex_);
    MOTLEY_CHECK(!jobs_.empty(), "Next() without a submitted batch");
    done_.wait(lock, [this] { return jobs_.front()->finished == jobs_.front()->count; });
    const std::unique_ptr<Job> job = std::move(jobs_.front());
    jobs_.pop_front();
    if (!job->failure.ok()) return std::move(job->failure);
    return std::move(job->batch);
  }

 private:
  void Work() {
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset_->pixels_per_sample()));
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      Job* job = FindJob();
      if (job == nullptr) {
        work_.wait(lock);
      } else if (!job->allocated) {
        Allocate(*job, lock);
      } else {
        const Chunk chunk{job, job->next, std::min(job->next + job->chunk, job->count)};
        job->next = chunk.end;
        Process(chunk, pixels, lock);
      }
    }
  }

  // The oldest batch with something to do for one more thread.
  Job* FindJob() {
    for (const auto& job : jobs_) {
      if (job->next < job->count && !job->allocating) return job.get();
    }
    return nullptr;
  }

  // Not done in Submit: clearing the memory of a large batch takes milliseconds.
  void Allocate(Job& job, std::unique_lock<std::mutex>& lock) {
    job.allocating = true;
    lock.unlock();
    base::Status status;
    try {
      job.batch.images.resize(job.count * floats_per_sample_);
      job.batch.labels.resize(job.count);
    } catch (const std::exception& error) {
      status = base::Internal("batch of {} samples: {}", job.count, error.what());
    }
    lock.lock();
    job.allocating = false;
    job.allocated = true;
    if (!status.ok()) {
      job.failure = std::move(status);
      job.next = job.finished = job.count;
      done_.notify_all();
    }
    work_.notify_all();
  }

  void Process(const Chunk& chunk, std::span<std::uint8_t> pixels,
               std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    base::Status status;
    std::size_t position = chunk.begin;
    for (; position < chunk.end && status.ok() && !stopping_; ++position) {
      status = Load(chunk.job->batch, position, pixels);
    }
    lock.lock();
    Job& job = *chunk.job;
    if (!status.ok() && (job.failure.ok() || position < job.failed_at)) {
      job.failure = std::move(status);
      job.failed_at = position;
    }
    job.finished += chunk.end - chunk.begin;
    if (job.finished == job.count) done_.notify_all();
  }

  base::Status Load(Batch& batch, std::size_t position, std::span<std::uint8_t> pixels) const {
    const SampleId id = batch.ids[position];
    MOTLEY_CHECK(dataset_->Contains(id), "sample {} of {}", id, dataset_->size());
    try {
      MOTLEY_RETURN_IF_ERROR(dataset_->Decode(id, pixels));
    } catch (const std::exception& error) {
      return base::Internal("sample {}: {}", id, error.what());
    }
    batch.labels[position] = dataset_->label(id);
    const std::span<float> out(batch.images);
    transform_.Apply(*dataset_, pixels, options_.seed, batch.epoch, id,
                     out.subspan(position * floats_per_sample_, floats_per_sample_));
    return {};
  }

  const std::shared_ptr<const Dataset> dataset_;
  const Transform transform_;
  const LoaderOptions options_;
  std::size_t floats_per_sample_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable work_;  // a job has something to do, or stopping
  std::condition_variable done_;  // a job is finished
  std::deque<std::unique_ptr<Job>> jobs_;
  std::atomic<bool> stopping_ = false;  // written under the lock, also read between samples
  std::vector<std::jthread> threads_;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, Transform transform, LoaderOptions options)
    : impl_(std::make_unique<Impl>(std::move(dataset), std::move(transform), options)) {}

Loader::~Loader() = default;

void Loader::Submit(std::vector<SampleId> ids, std::uint64_t epoch) {
  impl_->Submit(std::move(ids), epoch);
}

std::int64_t Loader::pending() const { return impl_->pending(); }

base::Result<Batch> Loader::Next() { return impl_->Next(); }

}  // namespace motley::data
