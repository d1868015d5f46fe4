#include "motley/data/images.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "motley/base/check.h"
#include "motley/base/file.h"
#include "motley/data/codec.h"
#include "motley/data/image_layout.h"
#include "motley/data/image_store.h"
#include "motley/data/memory_dataset.h"
#include "motley/data/resize.h"

namespace motley::data {
namespace {

struct ImageSetParts {
  std::shared_ptr<const ImageStore> store;
  std::vector<std::size_t> indices;  // into the store, per sample
  std::vector<std::int32_t> labels;
  std::vector<std::string> classes;
  ImageShape shape;
  bool resize = false;
};

class ImageSet final : public Dataset {
 public:
  explicit ImageSet(ImageSetParts parts) : parts_(std::move(parts)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(parts_.labels.size()); }
  int channels() const override { return parts_.shape.channels; }
  int height() const override { return parts_.shape.height; }
  int width() const override { return parts_.shape.width; }
  const std::vector<std::string>& classes() const override { return parts_.classes; }
  std::int32_t label(SampleId id) const override { return parts_.labels[id]; }

  base::Status Decode(SampleId id, std::span<std::uint8_t> pixels) const override {
    MOTLEY_CHECK(id < parts_.labels.size() && pixels.size() == parts_.shape.size(),
                 "sample {} of {} into {} bytes", id, parts_.labels.size(), pixels.size());
    const std::string origin = parts_.store->Origin(parts_.indices[id]);
    std::string buffer;
    MOTLEY_ASSIGN_OR_RETURN(const auto bytes, parts_.store->Read(parts_.indices[id], buffer));
    MOTLEY_ASSIGN_OR_RETURN(Image image, DecodeImage(bytes, origin, CodecOptionsFor()));
    MOTLEY_RETURN_IF_ERROR(Fit(image, origin));
    ToPlanes(image, pixels);
    return {};
  }

  std::string ContentHash() const override {
    std::string text = DescribeForHash(*this);
    std::string buffer;
    for (const auto index : parts_.indices) {
      const auto bytes = parts_.store->Read(index, buffer);
      text += bytes.ok() ? base::Sha256(*bytes) : bytes.status().message();
    }
    return base::Sha256(text);
  }

 private:
  CodecOptions CodecOptionsFor() const {
    CodecOptions options{.channels = parts_.shape.channels};
    if (parts_.resize) {
      options.enough_height = parts_.shape.height;
      options.enough_width = parts_.shape.width;
    }
    return options;
  }

  base::Status Fit(Image& image, const std::string& origin) const {
    if (image.height == parts_.shape.height && image.width == parts_.shape.width) return {};
    if (!parts_.resize) {
      return base::InvalidInput("{}: the image is {}x{}, the first one was {}x{}", origin,
                                image.width, image.height, parts_.shape.width, parts_.shape.height)
          .WithFix("give the size to which all images shall be resized");
    }
    image = Resize(image, parts_.shape.height, parts_.shape.width);
    return {};
  }

  static void ToPlanes(const Image& image, std::span<std::uint8_t> out) {
    const auto channels = static_cast<std::size_t>(image.channels);
    const std::size_t plane = out.size() / channels;
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t i = 0; i < plane; ++i) out[c * plane + i] = image.pixels[i * channels + c];
    }
  }

  ImageSetParts parts_;
};

std::vector<std::string> ClassesOf(const std::vector<ImageLayout::Entry>& entries) {
  std::vector<std::string> classes;
  classes.reserve(entries.size());
  for (const auto& entry : entries) classes.push_back(entry.label);
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  return classes;
}

class ImageSource final : public Source {
 public:
  ImageSource(std::string origin, std::shared_ptr<const ImageStore> store, ImageLayout layout,
              OpenOptions options)
      : origin_(std::move(origin)),
        store_(std::move(store)),
        layout_(std::move(layout)),
        options_(std::move(options)) {}

  base::Result<std::shared_ptr<const Dataset>> Open(Part part,
                                                    const Dataset* train) const override {
    MOTLEY_ASSIGN_OR_RETURN(const auto* entries, EntriesOf(part));
    ImageSetParts parts{.store = store_, .resize = options_.resize_height > 0};
    parts.classes = train != nullptr ? train->classes() : ClassesOf(*entries);
    std::map<std::string, std::int32_t> numbers;
    for (const auto& name : parts.classes) {
      numbers.emplace(name, static_cast<std::int32_t>(numbers.size()));
    }
    for (const auto& entry : *entries) {
      const auto found = numbers.find(entry.label);
      if (found == numbers.end()) {
        return base::InvalidInput("{}: class '{}' is not in the training set",
                                  store_->Origin(entry.index), entry.label);
      }
      parts.labels.push_back(found->second);
      parts.indices.push_back(entry.index);
    }
    MOTLEY_ASSIGN_OR_RETURN(parts.shape, ShapeFor(parts.indices.front(), train));
    auto set = std::make_shared<ImageSet>(std::move(parts));
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(set->pixels_per_sample()));
    MOTLEY_RETURN_IF_ERROR(set->Decode(0, pixels));
    return std::shared_ptr<const Dataset>(std::move(set));
  }

 private:
  base::Result<const std::vector<ImageLayout::Entry>*> EntriesOf(Part part) const {
    const bool all_test = part == Part::kTestOnly && !layout_.split;
    const auto& entries = part == Part::kTrain || all_test ? layout_.train : layout_.test;
    if (!entries.empty()) return &entries;
    if (part == Part::kTest && !layout_.split) {
      return base::NotFound("{}: has no test part: its class folders lie at the top", origin_)
          .WithFix("name other images as data.test, or arrange them as train/CLASS and test/CLASS");
    }
    const char* name = part == Part::kTrain ? "train" : "test";
    return base::NotFound("{}: no image below {}/", origin_, name)
        .WithFix(fmt::format("put images (.jpg, .jpeg, .png) into {}/CLASS/", name));
  }

  // What the first image looks like, unless the training set or the options say it already.
  base::Result<ImageShape> ShapeFor(std::size_t index, const Dataset* train) const {
    if (train != nullptr) return ImageShape{train->channels(), train->height(), train->width()};
    std::string buffer;
    MOTLEY_ASSIGN_OR_RETURN(const auto bytes, store_->Read(index, buffer));
    MOTLEY_ASSIGN_OR_RETURN(const Image image, DecodeImage(bytes, store_->Origin(index), {}));
    if (options_.resize_height == 0) return ImageShape{image.channels, image.height, image.width};
    return ImageShape{image.channels, options_.resize_height, options_.resize_width};
  }

  std::string origin_;
  std::shared_ptr<const ImageStore> store_;
  ImageLayout layout_;
  OpenOptions options_;
};

base::Result<std::unique_ptr<Source>> MakeSource(const std::string& origin,
                                                 std::shared_ptr<const ImageStore> store,
                                                 const OpenOptions& options) {
  if (store->names().empty()) {
    return base::NotFound("{}: no image (.jpg, .jpeg, .png) is in it", origin)
        .WithFix("arrange images as train/CLASS/*.jpg and test/CLASS/*.jpg, or CLASS/*.jpg");
  }
  auto layout = UnderstandLayout(store->names());
  if (!layout.ok()) return std::move(layout).status().In(origin);
  return std::unique_ptr<Source>(
      std::make_unique<ImageSource>(origin, std::move(store), std::move(layout).value(), options));
}

base::Status CheckResize(const OpenOptions& options) {
  if (options.resize_height == 0 && options.resize_width == 0) return {};
  if (options.resize_height <= 0 || options.resize_width <= 0) {
    return base::InvalidInput("resize to {}x{}: give both sides or none", options.resize_width,
                              options.resize_height);
  }
  return CheckDimensions(static_cast<std::uint64_t>(options.resize_height),
                         static_cast<std::uint64_t>(options.resize_width), "resize");
}

}  // namespace

base::Result<std::unique_ptr<Source>> Images(const std::filesystem::path& path,
                                             const OpenOptions& options) {
  MOTLEY_RETURN_IF_ERROR(CheckResize(options));
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    MOTLEY_ASSIGN_OR_RETURN(auto store, StoreOfFolder(path));
    return MakeSource(path.string(), std::move(store), options);
  }
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    return base::InvalidInput("{}: is neither a folder nor a regular file", path.string());
  }
  if (options.on_progress) options.on_progress("reading " + path.string());
  MOTLEY_ASSIGN_OR_RETURN(auto store, StoreOfTarFile(path));
  return MakeSource(path.string(), std::move(store), options);
}

base::Result<std::unique_ptr<Source>> ImagesInTar(const std::string& bytes,
                                                  const std::string& origin,
                                                  const OpenOptions& options) {
  MOTLEY_RETURN_IF_ERROR(CheckResize(options));
  MOTLEY_ASSIGN_OR_RETURN(auto store, StoreOfTarBytes(bytes, origin));
  return MakeSource(origin, std::move(store), options);
}

}  // namespace motley::data
