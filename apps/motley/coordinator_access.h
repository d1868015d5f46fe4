#ifndef MOTLEY_APPS_MOTLEY_COORDINATOR_ACCESS_H_
#define MOTLEY_APPS_MOTLEY_COORDINATOR_ACCESS_H_

#include "apps/motley/commands.h"
#include "apps/motley/console.h"
#include "motley/base/status.h"
#include "motley/cluster/security.h"

namespace motley::app {

// The token of --token, of the file of --token-file, or of MOTLEY_TOKEN.
base::Result<cluster::JoinToken> TokenOf(const CoordinatorArgs& args,
                                         const Environment& environment);

// The failure of a call to a coordinator. One that stayed away has an exit code of its own: it is
// printed here.
base::Result<int> OrLostCoordinator(const base::Status& failure);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_COORDINATOR_ACCESS_H_
