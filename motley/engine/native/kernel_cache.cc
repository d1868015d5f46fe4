#include "motley/engine/native/kernel_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <vector>

#include "motley/base/cpu.h"
#include "motley/base/file.h"

namespace motley::engine::native {
namespace {

// A shape, then candidate=seconds, with tabs between.
constexpr char kSeparator = '\t';
constexpr std::uint64_t kMaxBytes = 16 << 20;

std::string FirstLine() {
  const dnnl_version_t* const v = dnnl_version();
  return fmt::format("motley kernels 2{0}{1}{0}oneDNN {2}.{3}.{4} isa {5:x}", kSeparator,
                     base::CpuModel(), v->major, v->minor, v->patch,
                     static_cast<unsigned>(dnnl_get_effective_cpu_isa()));
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

}  // namespace

KernelCache::KernelCache(std::filesystem::path file) : file_(std::move(file)) {
  if (file_.empty()) return;
  const auto text = base::ReadFile(file_, kMaxBytes);
  if (!text.ok()) return;
  // A last line without its end was cut off.
  const std::vector<std::string_view> lines =
      Split(std::string_view(*text).substr(0, text->rfind('\n') + 1), '\n');
  if (lines.empty() || lines.front() != FirstLine()) return;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string_view> fields = Split(lines[i], kSeparator);
    Times times;
    for (std::size_t f = 1; f < fields.size(); ++f) {
      const std::size_t equals = fields[f].find('=');
      if (equals == std::string_view::npos) continue;
      const std::string_view number = fields[f].substr(equals + 1);
      double seconds = 0.0;
      const auto [end, error] =
          std::from_chars(number.data(), number.data() + number.size(), seconds);
      if (error != std::errc() || !(seconds > 0.0) || !std::isfinite(seconds)) continue;
      times[std::string(fields[f].substr(0, equals))] = seconds;
    }
    if (!times.empty()) times_[std::string(fields[0])] = std::move(times);
  }
}

const KernelCache::Times* KernelCache::Find(const std::string& shape) const {
  const auto found = times_.find(shape);
  return found == times_.end() ? nullptr : &found->second;
}

const KernelCache::Times& KernelCache::Add(const std::string& shape, Times times) {
  changed_ = true;
  return times_[shape] = std::move(times);
}

void KernelCache::Save() {
  if (!changed_ || file_.empty()) return;
  changed_ = false;
  std::string text = FirstLine() + "\n";
  for (const auto& [shape, times] : times_) {
    text += shape;
    for (const auto& [candidate, seconds] : times) {
      text += fmt::format("{}{}={:.9f}", kSeparator, candidate, seconds);
    }
    text += "\n";
  }
  std::error_code ignored;
  std::filesystem::create_directories(file_.parent_path(), ignored);
  // Several processes of one user may be measuring.
  const std::filesystem::path beside = fmt::format("{}.{}", file_.string(), ::getpid());
  const std::string_view whole = text;
  if (!base::WriteFileSynced(beside, {&whole, 1}).ok() || !base::RenameSynced(beside, file_).ok()) {
    std::filesystem::remove(beside, ignored);
  }
}

}  // namespace motley::engine::native
