#include "apps/motley/predict.h"

#include <fmt/format.h>

#include <algorithm>

#include "motley/sim/split_step.h"

namespace motley::app {
namespace {

double Bytes(const graph::Graph& graph) {
  return 4.0 * static_cast<double>(graph.parameter_count() + graph.buffer_count());
}

double Queueing(const plan::UpdateCosts& costs, int devices, int groups) {
  const double size = static_cast<double>(devices) / groups;
  const double away = std::max(costs.compute_seconds / size, costs.network_seconds * size);
  return plan::QueueingSeconds(std::vector<double>(static_cast<std::size_t>(groups), away),
                               std::vector<double>{costs.server_seconds});
}

}  // namespace

Predictions Predict(const PredictionInput& input) {
  Predictions result;
  plan::HeadCosts costs{.body_seconds = input.batch_seconds,
                        .body_bytes = Bytes(input.graph),
                        .bytes_per_second = input.bytes_per_second};
  result.weight_bytes = 2.0 * costs.body_bytes;
  const auto& halves = input.halves;
  result.head = halves.ok() ? base::Status() : halves.status();
  if (halves.ok()) {
    const double share = sim::HeadPart(*halves);
    costs.head_seconds = share * input.batch_seconds;
    costs.body_seconds = input.batch_seconds - costs.head_seconds;
    costs.server_head_seconds = share * input.server_seconds;
    costs.body_bytes = Bytes(halves->body);
    costs.head_bytes = Bytes(halves->head);
    costs.activation_bytes = 4.0 * static_cast<double>(input.batch) *
                             static_cast<double>(graph::Count(halves->head.input_shape()));
    result.activation_bytes = 2.0 * costs.activation_bytes;
    result.body_bytes = 2.0 * costs.body_bytes;
  }
  costs.update_seconds_per_byte = input.update_seconds / Bytes(input.graph);
  std::vector<int> counts;
  for (int groups = 1; groups < input.devices; groups *= 2) counts.push_back(groups);
  counts.push_back(input.devices);
  const plan::UpdateCosts whole = plan::WithHeadOnDevices(costs);
  for (const int groups : counts) {
    Prediction row{.groups = groups,
                   .closed_form = plan::ClosedFormSeconds(whole, input.devices, groups),
                   .queueing = Queueing(whole, input.devices, groups)};
    if (halves.ok()) {
      const plan::UpdateCosts merged =
          plan::WithMergedHead(costs, static_cast<double>(input.devices) / groups);
      row.merged_closed_form = plan::ClosedFormSeconds(merged, input.devices, groups);
      row.merged_queueing = Queueing(merged, input.devices, groups);
    }
    result.rows.push_back(row);
  }
  return result;
}

void PrintPredictions(const Predictions& predictions, std::FILE* out) {
  const bool merged = predictions.head.ok();
  fmt::print(out, "seconds per update, predicted for equal devices of the mean speed\n\n");
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
