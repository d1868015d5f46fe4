#ifndef MOTLEY_TELEMETRY_EVENTS_H_
#define MOTLEY_TELEMETRY_EVENTS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/status.h"

namespace motley::telemetry {

// The version of events.jsonl and summary.json. Raised when a reader of the old form would be
// misled; new fields and new events do not raise it.
inline constexpr int kFormatVersion = 1;

// Appends events to events.jsonl, one JSON object per line: {"v":1,"time":…,"run":…,"event":…,…}.
// `time` is seconds since the start of the job, resumes included; the first event of each process
// has the wall clock as "wall_clock" (UTC, ISO 8601).
//
// Every line is one write(2), so a kill leaves at most one torn line, and that the last one. Open
// cuts a torn last line off: its event was never complete, and whole lines are all a reader needs
// to cope with.
//
// A resume keeps the events of the earlier process. Those after the checkpoint that it went back to
// did not happen, as far as the result goes: a "rolled_back" event names the last step that counts.
//
// Thread safety: Write and status may be called from any thread.
class EventWriter {
 public:
  // Opens for appending. `run` names this process's run in every line.
  static base::Result<std::unique_ptr<EventWriter>> Open(const std::filesystem::path& file,
                                                         std::string run);
  ~EventWriter();
  // `fields` is an object; its keys follow the common ones. A failure (a full disk) does not stop
  // a training run: it is kept for status().
  void Write(double time, const std::string& event, const nlohmann::json& fields);

  // The first failure of Write, if there was one.
  base::Status status() const;
  // The "step" of the last event that had one when the file was opened: how far an earlier process
  // got, as far as it told. None in a new file.
  std::optional<std::int64_t> last_step() const;

 private:
  class Impl;
  explicit EventWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// All events of a file, in order. A torn last line is left out; any other line that is no JSON
// object is refused with its number.
base::Result<std::vector<nlohmann::json>> ReadEvents(const std::filesystem::path& file);

}  // namespace motley::telemetry

#endif  // MOTLEY_TELEMETRY_EVENTS_H_
