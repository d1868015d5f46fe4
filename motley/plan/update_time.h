#ifndef MOTLEY_PLAN_UPDATE_TIME_H_
#define MOTLEY_PLAN_UPDATE_TIME_H_

#include <cstdint>
#include <span>

namespace motley::plan {

// Seconds per update with g groups against one server: predictions before anything runs. Three of
// them exist: this closed form for equal devices, a queueing network for unequal groups (below),
// and the run of sim::Timeline.

// One step of N equal devices.
struct UpdateCosts {
  double compute_seconds = 0.0;  // of one device for the whole batch, on the device
  double network_seconds = 0.0;  // of one device's messages, on the server's link
  double server_seconds = 0.0;   // of the server for an update; a queue
};

// T(g) = max(server, (t(k) + server) / g) with k = N/g devices in a group, and
// t(k) = max(compute / k, network * k): the server is busy all the time, or every group makes an
// update per round. Requires 1 <= groups <= devices.
double ClosedFormSeconds(const UpdateCosts& costs, int devices, int groups);

// The smallest number of groups with which the server is busy all the time; none: the number of
// devices. More groups make updates staler and not faster.
int SaturatingGroups(const UpdateCosts& costs, int devices);

// What it takes to say the same of a net with the head on the server or on the devices.
struct HeadCosts {
  double body_seconds = 0.0, head_seconds = 0.0;  // of one device for the whole batch
  double server_head_seconds = 0.0;               // of the head server for the whole batch
  double body_bytes = 0.0, head_bytes = 0.0;      // of their parameters
  double activation_bytes = 0.0;                  // of the whole batch, where the net is cut
  double bytes_per_second = 0.0;                  // of the server's link, each way
  double update_seconds_per_byte = 0.0;           // of the model server
};

// On the devices: the whole net is computed there, and all gradients and weights travel. On the
// server ("merged head"): devices compute the body and its parameters travel; for the head only the
// activations of the device's samples and their gradients do, and every group waits for its turn.
UpdateCosts WithHeadOnDevices(const HeadCosts& head);
UpdateCosts WithMergedHead(const HeadCosts& head, double group_size);

// Unequal groups: a closed queueing network with one customer for each group. A group is away
// (computing, reducing, in wires that are its own) for `away_seconds`, then passes the stations
// that all share, each first come, first served, with these mean service times.
//
// Mean value analysis: exact for equal groups and exponential service, the approximation of Bard
// and Schweitzer otherwise. Returns seconds per update, all groups together. Service that varies
// less than the exponential queues less: the truth lies between this and the closed form.
// Requires a group; times >= 0 and not all 0.
double QueueingSeconds(std::span<const double> away_seconds,
                       std::span<const double> station_seconds);

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_UPDATE_TIME_H_
