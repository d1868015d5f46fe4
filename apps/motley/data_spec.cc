#include "apps/motley/data_spec.h"

#include <filesystem>
#include <system_error>

namespace motley::app {
namespace {

namespace fs = std::filesystem;

bool IsForm(const std::string& text) {
  return text == "mnist" || text == "glyphs" || text.starts_with("idx:") ||
         text.starts_with("cifar:") || text.starts_with("images:");
}

std::string FormOfFolder(const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("train-images")) return "idx:";
    if (name == "data_batch_1.bin" || name == "train.bin" || name == "cifar-10-batches-bin" ||
        name == "cifar-100-binary") {
      return "cifar:";
    }
  }
  return "images:";
}

}  // namespace

base::Result<std::string> DataSpecOf(const std::string& text) {
  if (text.empty() || IsForm(text)) return text;
  std::error_code error;
  if (fs::is_directory(text, error)) return FormOfFolder(text) + text;
  if (fs::is_regular_file(text, error)) return "images:" + text;
  return base::InvalidInput("--data {}: there is no such folder or file", text)
      .WithFix(
          "give a folder, an archive, or a form of data.train such as idx:DIR; without --data "
          "the samples come from the coordinator");
}

}  // namespace motley::app
