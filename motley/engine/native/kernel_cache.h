#ifndef MOTLEY_ENGINE_NATIVE_KERNEL_CACHE_H_
#define MOTLEY_ENGINE_NATIVE_KERNEL_CACHE_H_

#include <filesystem>
#include <map>
#include <string>

namespace motley::engine::native {

// What kernels took on this machine, so that each shape is measured once and not in every run. Kept
// in a file (none: in memory only) whose first line names the processor and the library; a file of
// another machine, or one that cannot be read, counts as empty, and one that cannot be written is
// only a pity.
class KernelCache {
 public:
  // Seconds of one forward and backward pass, by candidate.
  using Times = std::map<std::string, double>;

  explicit KernelCache(std::filesystem::path file);

  // Null where nothing is known.
  const Times* Find(const std::string& shape) const;
  const Times& Add(const std::string& shape, Times times);
  // Writes the file when there is something new.
  void Save();

 private:
  std::filesystem::path file_;
  std::map<std::string, Times> times_;
  bool changed_ = false;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_KERNEL_CACHE_H_
