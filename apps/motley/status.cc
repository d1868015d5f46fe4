#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "apps/motley/address.h"
#include "apps/motley/commands.h"
#include "apps/motley/coordinator_access.h"
#include "motley/cluster/worker.h"

namespace motley::app {
namespace {

using base::Result;
using Json = nlohmann::ordered_json;

Json ToJson(const cluster::proto::MemberStatus& member) {
  return {{"name", member.name()},
          {"host", member.host()},
          {"device", member.device()},
          {"peer", member.peer()},
          {"state", member.state()},
          {"share", member.share()},
          {"group", member.group()},
          {"range", member.range()},
          {"samples", member.samples()},
          {"samples_per_second", member.samples_per_second()},
          {"age_seconds", member.age_seconds()},
          {"silent_seconds", member.silent_seconds()},
          {"reason", member.reason()}};
}

Json ToJson(const cluster::proto::StatusReply& status) {
  Json members = Json::array();
  for (const auto& member : status.members()) members.push_back(ToJson(member));
  const bool tested = status.test_accuracy() >= 0;
  return {{"model", status.model()},
          {"data", status.data()},
          {"phase", status.phase()},
          {"epoch", status.epoch()},
          {"step", status.step()},
          {"samples", status.samples()},
          {"samples_per_second", status.samples_per_second()},
          {"loss", status.loss()},
          {"test_accuracy", tested ? Json(status.test_accuracy()) : Json(nullptr)},
          {"generation", status.generation()},
          {"gloo", status.gloo()},
          {"groups", status.groups()},
          {"shards", status.shards()},
          {"members", std::move(members)}};
}

std::string JobLine(const cluster::proto::StatusReply& status) {
  std::string line =
      fmt::format("{} on {}: {}, epoch {}, step {}, {:.0f} samples/s, loss {:.4f}", status.model(),
                  status.data(), status.phase(), status.epoch() + 1, Thousands(status.step()),
                  status.samples_per_second(), status.loss());
  if (status.shards() > 1) line += fmt::format(", {} shards", status.shards());
  if (status.groups() > 1) line += fmt::format(", {} groups", status.groups());
  if (status.test_accuracy() >= 0) {
    line += fmt::format(", test accuracy {:.2f} %", 100.0 * status.test_accuracy());
  }
  return line;
}

using Row = std::vector<std::string>;

Row MemberRow(const cluster::proto::MemberStatus& member) {
  std::string state =
      member.reason().empty() ? member.state() : member.state() + ": " + member.reason();
  if (member.range() > 0) state += fmt::format(", holds range {} of the model", member.range() + 1);
  return {member.name(),
          member.host(),
          member.device(),
          member.group() < 0 ? "" : std::to_string(member.group()),
          std::to_string(member.share()),
          fmt::format("{:.0f}", member.samples_per_second()),
          FormatSeconds(member.age_seconds()),
          fmt::format("{:.1f}s", member.silent_seconds()),
          state};
}

// The last column is not padded.
void PrintTable(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      line += fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    fmt::print("{}{}\n", line, row.back());
  }
}

}  // namespace

Result<int> ShowStatus(const StatusArgs& args, const Environment& environment) {
  MOTLEY_ASSIGN_OR_RETURN(const Address address, ParseAddress(args.coordinator.address));
  MOTLEY_ASSIGN_OR_RETURN(const cluster::JoinToken token, TokenOf(args.coordinator, environment));
  const auto status = cluster::GetStatus(address.ToText(), token);
  if (!status.ok()) return OrLostCoordinator(status.status());
  if (args.json) {
    fmt::print("{}\n", Dump(ToJson(*status)));
    return kExitDone;
  }
  fmt::print("{}\n", JobLine(*status));
  std::vector<Row> rows = {
      {"name", "host", "device", "group", "share", "samples/s", "age", "silent", "state"}};
  for (const auto& member : status->members()) rows.push_back(MemberRow(member));
  if (rows.size() == 1) {
    fmt::print("nobody has joined yet\n");
  } else {
    PrintTable(rows);
  }
  return kExitDone;
}

}  // namespace motley::app
