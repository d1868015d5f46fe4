#include "apps/motley/commands.h"
#include "apps/motley/prepare.h"
#include "motley/data/open.h"

namespace motley::app {

base::Result<int> DataGet(const DataGetArgs& args, const Environment& environment) {
  MOTLEY_ASSIGN_OR_RETURN(const std::filesystem::path cache, DataCache(environment));
  data::OpenOptions options;
  options.cache = cache;
  options.on_progress = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  MOTLEY_ASSIGN_OR_RETURN(const std::filesystem::path folder, data::Fetch(args.name, options));
  if (args.json) {
    fmt::print("{}\n", Dump({{"name", args.name}, {"folder", folder.string()}}));
  } else {
    fmt::print("{} is in {}\n", args.name, folder.string());
  }
  return kExitDone;
}

}  // namespace motley::app
