#ifndef MOTLEY_TELEMETRY_EVENTS_H_
#define MOTLEY_TELEMETRY_EVENTS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "motley/base/clock.h"
#include "motley/base/status.h"

namespace motley::telemetry {

// The version of events.jsonl and summary.json. Raised when a reader of the old form would be
// misled; new fields and new events do not raise it.
inline constexpr int kFormatVersion = 1;

// Appends events to events.jsonl, one JSON object per line: {"v":1,"time":…,"run":…,"event":…,…}.
// `time` is seconds since the start of the job, resumes included; the first event of each process
// has the wall clock.
//
// A resume keeps the events of the earlier process. Those after the checkpoint that it went back to
// did not happen, as far as the result goes: a "rolled_back" event names the last step that counts.
//
// Thread safety: Write may be called from any thread.
class EventWriter {
 public:
  // Opens for appending. `run` names this process's run in every line.
  static base::Result<std::unique_ptr<EventWriter>> Open(const std::filesystem::path& file,
                                                         std::string run);
  ~EventWriter();
  // `fields` is an object; its keys follow the common ones.
  void Write(double time, const std::string& event, const nlohmann::json& fields);

 private:
  class Impl;
  explicit EventWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley::telemetry

#endif  // MOTLEY_TELEMETRY_EVENTS_H_
