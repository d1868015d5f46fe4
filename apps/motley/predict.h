#ifndef MOTLEY_APPS_MOTLEY_PREDICT_H_
#define MOTLEY_APPS_MOTLEY_PREDICT_H_

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "motley/base/status.h"
#include "motley/graph/graph.h"
#include "motley/plan/update_time.h"

namespace motley::app {

// What predictions are made from: equal devices, each of the mean speed of the job's.
struct PredictionInput {
  const graph::Graph& graph;
  const base::Result<graph::Halves>& halves;  // or why it cannot have a merged head
  std::int64_t batch = 0;                     // of a group's step
  int devices = 0;
  double batch_seconds = 0.0;     // of one such device for the whole batch
  double server_seconds = 0.0;    // of the machine that would compute a merged head, for the batch
  double update_seconds = 0.0;    // of the model server
  double bytes_per_second = 0.0;  // of the servers' link, each way
};

// Seconds per update with so many groups, with the head on the devices and merged.
struct Prediction {
  int groups = 0;
  double closed_form = 0.0, queueing = 0.0;
  std::optional<double> merged_closed_form, merged_queueing;  // none: the net has no head
};

struct Predictions {
  std::vector<Prediction> rows;  // 1, 2, 4, … groups, and one for each device
  // Both ways: weights and gradients of a device's step, with a merged head those of the body, and
  // the activations of a group's step.
  double weight_bytes = 0.0, body_bytes = 0.0, activation_bytes = 0.0;
  base::Status head;  // why there is no merged head; ok when there is
};

Predictions Predict(const PredictionInput& input);

void PrintPredictions(const Predictions& predictions, std::FILE* out);
nlohmann::ordered_json PredictionsJson(const Predictions& predictions);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_PREDICT_H_
