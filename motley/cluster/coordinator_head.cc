// A merged head: members compute the body, the coordinator's head server the rest.
#include <algorithm>
#include <utility>

#include "motley/cluster/coordinator_impl.h"

namespace motley::cluster {
namespace {

void PushInParts(const SessionPtr& session, const StepKey& key, proto::Array array,
                 const ModelArray& floats) {
  const Parts parts(std::ssize(*floats), 0);
  for (int i = 0; i < parts.count(); ++i) {
    session->parts.Push({key, array, parts[i].offset, parts[i].size, floats});
  }
}

}  // namespace

base::Result<graph::Halves> SplitForMergedHead(const graph::Graph& graph, std::int64_t bn_batch,
                                               bool gloo) {
  auto halves = graph::Split(graph);
  if (!halves.ok()) {
    return std::move(halves).status().WithFix("leave the merged head out");
  }
  const auto refuse = [](const std::string& why, const std::string& fix) {
    return base::InvalidInput("{}", why).WithFix(fix);
  };
  if (gloo) {
    return refuse("members that sum gradients by themselves have no server for the head",
                  "leave cluster.merged_head or cluster.trusted_network out");
  }
  if (halves->head.has_batch_norm()) {
    return refuse("there is a batch norm in the head", "leave the merged head out");
  }
  if (bn_batch > 0 && graph.has_batch_norm()) {
    return refuse("devices compute their whole share at once, and so no virtual batches",
                  "leave cluster.merged_head or train.bn_batch out");
  }
  return halves;
}

void Coordinator::Impl::BeginHead(int number, const Group& group, const optim::SgdOptions& sgd) {
  const StepKey key{group.generation, group.version};
  HeadServer::Step step{.key = key,
                        .contributors = {},
                        .batch = {},
                        .sgd = sgd,
                        .on_gradient = {},
                        .on_complete = [this] { desk_.Wake(); }};
  std::map<std::string, SessionPtr> contributors;
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const SessionPtr& member = group.members[i];
    const std::int64_t samples = group.parts[i].samples();
    if (samples == 0) continue;
    step.contributors.push_back({member->name, samples});
    contributors.emplace(member->name, member);
    for (const data::Ticket& ticket : group.parts[i].public_tickets) {
      if (!order_ || order_->first != ticket.epoch) {
        order_.emplace(ticket.epoch,
                       data::Permutation(data_.train->size(), job_.seed(), ticket.epoch));
      }
      for (const data::SampleId id : order_->second.Ids(ticket)) {
        step.batch.ids.push_back(id);
        step.batch.labels.push_back(data_.train->label(id));
      }
      step.batch.epoch = ticket.epoch;
    }
  }
  step.on_gradient = [key, contributors](const std::string& name, const ModelArray& gradient) {
    PushInParts(contributors.at(name), key, proto::ARRAY_ACTIVATIONS, gradient);
  };
  head_->Begin(number, std::move(step));
}

bool Coordinator::Impl::HeadIsWell(int number) const {
  const auto outcome = head_->outcome(number);
  return !outcome || (outcome->ok() && (*outcome)->not_finite.empty());
}

base::Status Coordinator::Impl::HeadStatus(int number) const {
  const auto outcome = head_->outcome(number);
  return outcome && !outcome->ok() ? outcome->status() : base::Status();
}

bool Coordinator::Impl::HeadIsAtWork(int number, const Group& group) const {
  const auto sent = [this](const SessionPtr& member) { return head_->HasAll(member->name); };
  return !head_->outcome(number) && std::all_of(group.members.begin(), group.members.end(), sent);
}

void Coordinator::Impl::SendHead() {
  const auto weights = std::make_shared<const std::vector<float>>(head_->state().weights);
  for (const SessionPtr& member : members_) {
    const Group& group = groups_.at(member->group);
    const StepKey key{group.generation, group.version};
    if (std::exchange(member->has_head, key) != key) {
      PushInParts(member, key, proto::ARRAY_HEAD, weights);
    }
  }
}

void Coordinator::Impl::Discard(int number) {
  model_.Discard(number);
  DiscardAtShards(number);
  if (head_ != nullptr) head_->Discard(number);
}

}  // namespace motley::cluster
