#ifndef MOTLEY_APPS_MOTLEY_CLUSTER_VERBS_H_
#define MOTLEY_APPS_MOTLEY_CLUSTER_VERBS_H_

#include <functional>

#include "apps/motley/commands.h"
#include "apps/motley/console.h"
#include "motley/base/status.h"

namespace CLI {
class App;
}

namespace motley::app {

// What the parser found to do.
using Command = std::function<base::Result<int>()>;

struct ClusterArgs {
  ServeArgs serve;
  JoinArgs join;
  StatusArgs status;
  TokenArgs token;
};

// serve, join, status and token.
void AddClusterVerbs(CLI::App& app, ClusterArgs& args, const Environment& environment,
                     Command& command);

// Options that several verbs have.
void AddRun(CLI::App& verb, RunArgs& args);
void AddJson(CLI::App& verb, bool& json);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_CLUSTER_VERBS_H_
