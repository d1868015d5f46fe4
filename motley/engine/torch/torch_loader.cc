#include "motley/engine/torch/torch_loader.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "motley/engine/torch/kind.h"

namespace motley::engine::torch {
namespace {

struct Module {
  void (*make)(const std::shared_ptr<const graph::Graph>* graph, const DeviceOptions* options,
               const std::string* kind, MadeDevice* made) = nullptr;
};

constexpr const char* kFile = "motley_torch.so";
constexpr const char* kFix = "install libtorch-dev and build again, or use kind = \"native\"";

base::Result<Module> Open() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const std::filesystem::path& file : {program / kFile, program / "../lib/motley" / kFile}) {
    if (error || !std::filesystem::exists(file, error)) continue;
    // Never closed: LibTorch keeps threads.
    void* const module = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void* const entry = module == nullptr ? nullptr : ::dlsym(module, "MotleyMakeTorchDevice");
    if (entry != nullptr) return Module{reinterpret_cast<decltype(Module::make)>(entry)};
    return base::Unavailable("{}: cannot be used: {}", file.string(), ::dlerror()).WithFix(kFix);
  }
  return base::Unavailable("this build of Motley has no LibTorch").WithFix(kFix);
}

}  // namespace

MadeDevice LoadTorchDevice(const std::shared_ptr<const graph::Graph>& graph,
                           const DeviceOptions& options, const std::string& kind) {
  MOTLEY_RETURN_IF_ERROR(ParseKind(kind).status());
  static const base::Result<Module> module = Open();
  if (!module.ok()) return base::Status(module.status()).In(kind);
  MadeDevice made = base::Internal("nothing was made");
  module->make(&graph, &options, &kind, &made);
  return made;
}

}  // namespace motley::engine::torch
