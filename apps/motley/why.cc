#include <filesystem>
#include <string>

#include "apps/motley/commands.h"
#include "apps/motley/console.h"
#include "apps/motley/run_dir.h"
#include "apps/motley/train_plan.h"
#include "motley/telemetry/events.h"

namespace motley::app {
namespace {

using base::Result;
using nlohmann::json;

// What happened to the machines, what was decided because of it, and what came of that.
bool IsTold(const std::string& event) {
  for (const char* told :
       {"run_started", "joined", "left", "lost", "waiting", "decision", "outcome", "short_step",
        "unreachable", "rolled_back", "run_finished", "run_failed"}) {
    if (event == told) return true;
  }
  return false;
}

std::string Text(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}

double Number(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : 0.0;
}

std::string Sentence(const json& event) {
  const std::string name = Text(event, "event");
  if (name == "run_started") {
    return fmt::format("{} {}, batch {}",
                       event.value("resumed", false) ? "goes on with" : "begins to train",
                       Text(event, "model"), static_cast<std::int64_t>(Number(event, "batch")));
  }
  if (name == "decision") {
    const std::string before = Text(event, "before"), after = Text(event, "after");
    const double seconds = Number(event, "predicted_step_seconds");
    std::string words = fmt::format("because {}: ", Text(event, "reason"));
    // Of shares, unless it says what else.
    std::string what = "shares ";
    for (const char* other : {"learning rate", "momentum", "ranges of the model"}) {
      if (after.starts_with(other)) what.clear();
    }
    words += what + (before.empty() ? after : fmt::format("{} became {}", before, after));
    if (seconds > 0.0) words += fmt::format("; predicted {:.4g} s per step", seconds);
    if (event.contains("predicted_exchange_seconds")) {
      words += fmt::format("; predicted up to {:.4g} s of a step for the exchange",
                           Number(event, "predicted_exchange_seconds"));
    }
    return words;
  }
  if (name == "rolled_back") {
    return fmt::format("went back to step {}; what came after it did not count",
                       static_cast<std::int64_t>(Number(event, "step")));
  }
  if (name == "run_finished") return fmt::format("ended: {}", Text(event, "reason"));
  return Text(event, "message");
}

}  // namespace

Result<int> Why(const WhyArgs& args) {
  std::filesystem::path run = args.run;
  if (run.empty()) {
    MOTLEY_ASSIGN_OR_RETURN(run, LatestRun(kRuns));
  }
  MOTLEY_ASSIGN_OR_RETURN(const std::vector<json> events,
                          telemetry::ReadEvents(RunFiles{run}.events()));
  nlohmann::ordered_json answer = nlohmann::ordered_json::array();
  bool decided = false;
  for (const json& event : events) {
    const std::string name = Text(event, "event");
    if (!IsTold(name)) continue;
    decided = decided || name == "decision";
    if (args.json) {
      answer.push_back(nlohmann::ordered_json(event));
      continue;
    }
    fmt::print("{:>9.1f} s  step {:<7} {}\n", Number(event, "time"),
               static_cast<std::int64_t>(Number(event, "step")), Sentence(event));
  }
  if (args.json) {
    fmt::print("{}\n", Dump(answer));
  } else if (!decided) {
    fmt::print("One device did it all: there was nothing to decide.\n");
  }
  return kExitDone;
}

}  // namespace motley::app
