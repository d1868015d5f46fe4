#include "motley/data/image_layout.h"

#include <algorithm>
#include <cctype>

namespace motley::data {
namespace {

std::string_view First(std::string_view name) { return name.substr(0, name.find('/')); }

std::string_view WithoutFirst(std::string_view name) {
  const auto slash = name.find('/');
  return slash == std::string_view::npos ? std::string_view() : name.substr(slash + 1);
}

std::ptrdiff_t Depth(std::string_view name) { return std::count(name.begin(), name.end(), '/'); }

// train/CLASS/image, not an image of the class "train".
bool InSplit(std::string_view name) {
  return Depth(name) >= 2 && (First(name) == "train" || First(name) == "test");
}

// The length of "outer/" when every image lies in that one folder and it can be nothing else than
// an enclosing one.
std::size_t EnclosingPrefix(const std::vector<std::string>& names) {
  const std::string_view outer = First(names.front());
  const bool encloses_all = std::all_of(names.begin(), names.end(), [&](const auto& name) {
    return First(name) == outer && Depth(name) >= 2 && !InSplit(name);
  });
  return encloses_all ? outer.size() + 1 : 0;
}

}  // namespace

bool IsImageName(std::string_view name) {
  const auto base = name.substr(name.rfind('/') + 1);  // npos + 1 is 0
  if (base.starts_with('.')) return false;
  std::string lower(base);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.ends_with(".jpg") || lower.ends_with(".jpeg") || lower.ends_with(".png");
}

base::Result<ImageLayout> UnderstandLayout(const std::vector<std::string>& names) {
  ImageLayout layout;
  if (names.empty()) return layout;
  const std::size_t prefix = EnclosingPrefix(names);
  const auto inner = [&](std::size_t i) { return std::string_view(names[i]).substr(prefix); };
  for (std::size_t i = 0; i < names.size() && !layout.split; ++i) layout.split = InSplit(inner(i));
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::string_view name = inner(i);
    auto* part = &layout.train;
    if (layout.split) {
      if (First(name) == "test") part = &layout.test;
      if (First(name) != "test" && First(name) != "train") continue;
      name = WithoutFirst(name);
    }
    if (Depth(name) == 0) {
      return base::InvalidInput("image '{}' lies in no class folder", names[i])
          .WithFix("arrange images as train/CLASS/*.jpg and test/CLASS/*.jpg, or CLASS/*.jpg");
    }
    part->push_back({i, std::string(First(name))});
  }
  return layout;
}

}  // namespace motley::data
