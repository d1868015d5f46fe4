#include "apps/motley/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "motley/plan/groups.h"
#include "motley/sim/split_step.h"

namespace motley::app {
namespace {

double Bytes(const graph::Graph& graph) {
  return 4.0 * static_cast<double>(graph.parameter_count() + graph.buffer_count());
}

// The whole net, or with a merged head its body, on the devices; in the terms of the virtual clock.
struct Layout {
  double device_part = 1.0;  // of the seconds of the whole net
  double model_bytes = 0.0;  // that groups exchange with the server, one way
  std::optional<sim::Timeline::Options::Head> head;
};

sim::Timeline TimelineOf(const PredictionInput& input, const Layout& layout) {
  sim::Timeline::Options times{.devices = {},
                               .latency_seconds = input.latency_seconds,
                               .model_bytes = layout.model_bytes,
                               .server_seconds = input.update_seconds,
                               .server_bytes_per_second = input.bytes_per_second};
  for (const sim::VirtualDevice& device : input.devices) {
    times.devices.push_back({.curve = device.curve,
                             .pace = device.pace,
                             .service = device.service,
                             .bytes_per_second = device.bytes_per_second});
  }
  times.head = layout.head;
  return sim::Timeline(std::move(times));
}

base::Result<double> Queueing(const PredictionInput& input, const Layout& layout, int groups) {
  std::vector<plan::Candidate> candidates;
  for (const sim::VirtualDevice& device : input.devices) {
    const double scale = layout.device_part / device.pace.speed;
    candidates.push_back({.fixed_seconds = scale * device.curve.fixed_seconds,
                          .seconds_per_sample = scale * device.curve.seconds_per_sample,
                          .most = device.curve.cap});
  }
  MOTLEY_ASSIGN_OR_RETURN(const plan::Grouped formed,
                          plan::FormGroups(input.batch, input.multiple, groups, candidates));
  const sim::Timeline timeline = TimelineOf(input, layout);
  const double link = layout.model_bytes / input.bytes_per_second;
  std::vector<double> away = formed.seconds;
  for (std::size_t group = 0; group < away.size(); ++group) {
    std::vector<std::size_t> members;
    double own = 0.0;  // what the slowest link adds to the server's, there and back
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (formed.group[i] != static_cast<int>(group) || formed.shares[i] == 0) continue;
      members.push_back(i);
      own = std::max(own, 2.0 * (timeline.ServerLinkSeconds(i) - link));
    }
    away[group] += timeline.ReductionSeconds(members) + (groups > 1 ? own : 0.0);
    if (layout.head) away[group] += 2.0 * input.latency_seconds;
  }
  // Of the link each way: a group that is alone has its model with it.
  double crossing = groups > 1 ? link : 0.0;
  std::vector<double> stations;
  if (layout.head) {
    crossing +=
        static_cast<double>(input.batch) * layout.head->sample_bytes / input.bytes_per_second;
    stations.push_back(layout.head->curve.At(input.batch));
  }
  stations.insert(stations.end(), {crossing, crossing, groups > 1 ? input.update_seconds : 0.0});
  return plan::QueueingSeconds(away, stations);
}

// Of one device of the mean speed, for the whole batch.
double MeanSeconds(const PredictionInput& input) {
  double speed = 0.0;
  for (const sim::VirtualDevice& device : input.devices) {
    speed += device.pace.speed / device.curve.At(input.batch);
  }
  return static_cast<double>(input.devices.size()) / speed;
}

}  // namespace

base::Result<Predictions> Predict(const PredictionInput& input) {
  Predictions result;
  const double batch_seconds = MeanSeconds(input);
  plan::HeadCosts costs{.body_seconds = batch_seconds,
                        .body_bytes = Bytes(input.graph),
                        .bytes_per_second = input.bytes_per_second};
  result.weight_bytes = 2.0 * costs.body_bytes;
  const Layout whole{.device_part = 1.0, .model_bytes = costs.body_bytes, .head = {}};
  Layout merged;
  const auto& halves = input.halves;
  result.head = halves.ok() ? base::Status() : halves.status();
  if (halves.ok()) {
    const double share = sim::HeadPart(*halves);
    costs.head_seconds = share * batch_seconds;
    costs.body_seconds = batch_seconds - costs.head_seconds;
    costs.server_head_seconds = share * input.server.At(input.batch);
    costs.body_bytes = Bytes(halves->body);
    costs.head_bytes = Bytes(halves->head);
    const double sample_bytes = 4.0 * static_cast<double>(graph::Count(halves->head.input_shape()));
    costs.activation_bytes = static_cast<double>(input.batch) * sample_bytes;
    result.activation_bytes = 2.0 * costs.activation_bytes;
    result.body_bytes = 2.0 * costs.body_bytes;
    plan::SpeedCurve server = input.server;
    server.fixed_seconds *= share;
    server.seconds_per_sample *= share;
    merged = {.device_part = 1.0 - share,
              .model_bytes = costs.body_bytes,
              .head = sim::Timeline::Options::Head{.curve = server, .sample_bytes = sample_bytes}};
  }
  costs.update_seconds_per_byte = input.update_seconds / Bytes(input.graph);
  const int devices = static_cast<int>(input.devices.size());
  std::vector<int> counts;
  for (int groups = 1; groups < devices; groups *= 2) counts.push_back(groups);
  counts.push_back(devices);
  const plan::UpdateCosts on_devices = plan::WithHeadOnDevices(costs);
  for (const int groups : counts) {
    Prediction row{.groups = groups,
                   .closed_form = plan::ClosedFormSeconds(on_devices, devices, groups)};
    MOTLEY_ASSIGN_OR_RETURN(row.queueing, Queueing(input, whole, groups));
    if (halves.ok()) {
      const plan::UpdateCosts costs_of_group =
          plan::WithMergedHead(costs, static_cast<double>(devices) / groups);
      row.merged_closed_form = plan::ClosedFormSeconds(costs_of_group, devices, groups);
      MOTLEY_ASSIGN_OR_RETURN(row.merged_queueing, Queueing(input, merged, groups));
    }
    result.rows.push_back(row);
  }
  return result;
}

void PrintPredictions(const Predictions& predictions, std::FILE* out) {
  const bool merged = predictions.head.ok();
  fmt::print(out,
             "seconds per update: closed form for equal devices of the mean speed, queueing network "
             "for the groups that these ones would form\n\n");
  fmt::print(out, "{:>6}  {:^23}  {:^23}\n", "", "whole net on devices",
             merged ? "merged head" : "");
  fmt::print(out, "{:>6}  {:>11} {:>11}  {:>11} {:>11}\n", "groups", "closed form", "queueing",
             merged ? "closed form" : "", merged ? "queueing" : "");
  for (const Prediction& row : predictions.rows) {
    fmt::print(out, "{:>6}  {:>11.4g} {:>11.4g}", row.groups, row.closed_form, row.queueing);
    if (merged) {
      fmt::print(out, "  {:>11.4g} {:>11.4g}", *row.merged_closed_form, *row.merged_queueing);
    }
    fmt::print(out, "\n");
  }
  fmt::print(out, "\na device's step moves {:.1f} MB of weights and gradients",
             1e-6 * predictions.weight_bytes);
  if (merged) {
    fmt::print(out,
               "; with a merged head a group's moves {:.1f} MB of activations, and a device's "
               "{:.1f} MB of weights and gradients\n",
               1e-6 * predictions.activation_bytes, 1e-6 * predictions.body_bytes);
  } else {
    fmt::print(out, "\nno merged head: {}\n", predictions.head.message());
  }
}

nlohmann::ordered_json PredictionsJson(const Predictions& predictions) {
  nlohmann::ordered_json json;
  json["weight_bytes"] = predictions.weight_bytes;
  if (predictions.head.ok()) {
    json["merged_head"] = {{"activation_bytes", predictions.activation_bytes},
                           {"weight_bytes", predictions.body_bytes}};
  } else {
    json["merged_head"] = nullptr;
    json["no_merged_head"] = predictions.head.message();
  }
  json["seconds_per_update"] = nlohmann::ordered_json::array();
  for (const Prediction& row : predictions.rows) {
    nlohmann::ordered_json one = {
        {"groups", row.groups}, {"closed_form", row.closed_form}, {"queueing", row.queueing}};
    if (row.merged_closed_form) {
      one["merged_closed_form"] = *row.merged_closed_form;
      one["merged_queueing"] = *row.merged_queueing;
    }
    json["seconds_per_update"].push_back(std::move(one));
  }
  return json;
}

}  // namespace motley::app
