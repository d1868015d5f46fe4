#include "motley/engine/throttled.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "motley/base/cpu.h"

namespace motley::engine {
namespace {

// How long a sleeping device takes to see that nobody wants its result, and how far it works ahead
// of the slower one before it sleeps.
constexpr double kLookSeconds = 0.01;

// The speed at `time`, and until when it stays so.
std::pair<double, double> SpeedAt(const Pace& pace, double time) {
  double speed = pace.speed, until = std::numeric_limits<double>::infinity();
  for (const Slowdown& slowdown : pace.slowdowns) {
    if (time < slowdown.begin) {
      until = std::min(until, slowdown.begin);
    } else if (time < slowdown.end) {
      speed /= slowdown.factor;
      until = std::min(until, slowdown.end);
    }
  }
  return {speed, until};
}

class Throttled final : public Device {
 public:
  Throttled(std::unique_ptr<Device> device, Pace pace, int threads, const base::Clock& clock)
      : device_(std::move(device)), pace_(std::move(pace)), threads_(threads), clock_(clock) {}

  const graph::Graph& graph() const override { return device_->graph(); }
  std::string kind() const override {
    return fmt::format("{}, emulated at {:g} of its speed", device_->kind(), pace_.speed);
  }

  base::Result<StepResult> Step(const StepRequest& request) override {
    const double begin = clock_.Now();
    StepRequest inner = request;
    inner.on_bucket = {};
    if (device_->pauses()) {
      inner.on_pause = [&] { Pause(begin, request); };
    } else if (std::isfinite(request.deadline)) {
      inner.deadline = begin + pace_.WorkWithin(begin, request.deadline);
    }
    // What it waits for the head of its net is no work.
    std::atomic<double> waited{std::numeric_limits<double>::infinity()};
    if (request.on_boundary) {
      inner.on_boundary = [&](const Crossing& crossing) {
        const double came = clock_.Now();
        const bool answered = request.on_boundary(crossing);
        const double went = clock_.Now() - came;
        OfThisThread(begin).waited += went;
        for (double least = waited; went < least && !waited.compare_exchange_weak(least, went);) {
        }
        return answered;
      };
    }
    MOTLEY_ASSIGN_OR_RETURN(StepResult result, device_->Step(inner));
    const double idle = std::isfinite(waited.load()) ? waited.load() : 0.0;
    // One that stopped early did so at the deadline.
    const bool stopped =
        result.samples_done < request.batch->size() && std::isfinite(request.deadline);
    Sleep(begin + idle, stopped ? request.deadline : begin, request.cancel, result);
    result.seconds += idle;
    if (request.on_bucket) request.on_bucket(0, graph().parameter_count());
    return result;
  }

  base::Result<StepResult> Forward(const ForwardRequest& request) override {
    const double begin = clock_.Now();
    MOTLEY_ASSIGN_OR_RETURN(StepResult result, device_->Forward(request));
    Sleep(begin, begin, nullptr, result);
    return result;
  }

  std::map<std::string, std::string> kernel_choices() const override {
    return device_->kernel_choices();
  }
  std::vector<KernelReason> kernel_reasons() const override { return device_->kernel_reasons(); }
  std::vector<LayerTime> profile() const override { return device_->profile(); }

 private:
  // What a thread has done in a step.
  struct Mark {
    const Throttled* device = nullptr;
    double begin = 0.0;   // of the step
    double before = 0.0;  // seconds of the processor that it had used at its first pause in it
    double waited = 0.0;  // for the head of the net
  };
  // The device's threads live longer than a step, and belong to it alone.
  Mark& OfThisThread(double begin) const {
    thread_local Mark mark;
    if (mark.device != this || mark.begin != begin)
      mark = {this, begin, base::ThreadSeconds(), 0.0};
    return mark;
  }

  // Of a thread in the middle of a step: sleeps when it is ahead of the slower device.
  void Pause(double begin, const StepRequest& request) const {
    const Mark& mark = OfThisThread(begin);
    const double due = pace_.FinishTime(begin + mark.waited, base::ThreadSeconds() - mark.before);
    if (due - clock_.Now() > kLookSeconds) {
      SleepUntil(std::min(due, request.deadline), request.cancel);
    }
  }

  void SleepUntil(double end, const std::atomic<bool>* cancel) const {
    for (double now = clock_.Now(); now < end; now = clock_.Now()) {
      if (cancel != nullptr && cancel->load()) break;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(end - now, kLookSeconds)));
    }
  }

  // Until the work that began at `begin` is done, and at least until `until`.
  void Sleep(double begin, double until, const std::atomic<bool>* cancel,
             StepResult& result) const {
    const double work = result.cpu_seconds > 0.0 ? result.cpu_seconds / threads_ : result.seconds;
    SleepUntil(std::max(until, pace_.FinishTime(begin, work)), cancel);
    result.seconds = clock_.Now() - begin;
  }

  const std::unique_ptr<Device> device_;
  const Pace pace_;
  const int threads_;
  const base::Clock& clock_;
};

}  // namespace

double Pace::FinishTime(double begin, double work) const {
  if (slowdowns.empty()) return begin + work / speed;  // nearly always, and there are very many
  double time = begin;
  while (true) {
    const auto [now, until] = SpeedAt(*this, time);
    const double possible = (until - time) * now;
    if (possible >= work) return time + work / now;
    work -= possible;
    time = until;
  }
}

double Pace::WorkWithin(double begin, double end) const {
  double work = 0.0;
  for (double time = begin; time < end;) {
    const auto [now, until] = SpeedAt(*this, time);
    const double stop = std::min(until, end);
    work += (stop - time) * now;
    time = stop;
  }
  return work;
}

std::unique_ptr<Device> MakeThrottled(std::unique_ptr<Device> device, Pace pace, int threads,
                                      const base::Clock& clock) {
  return std::make_unique<Throttled>(std::move(device), std::move(pace), std::max(threads, 1),
                                     clock);
}

}  // namespace motley::engine
