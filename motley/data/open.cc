#include "motley/data/open.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "motley/data/cifar.h"
#include "motley/data/glyphs.h"
#include "motley/data/idx.h"
#include "motley/data/images.h"
#include "motley/data/mnist.h"
#include "motley/data/source.h"

namespace motley::data {
namespace {

constexpr const char* kForms =
    "mnist, idx:DIR, cifar:DIR, images:DIR, images:FILE.tar, images:FILE.tar.gz or glyphs";

// "idx:DIR" -> {"idx", DIR}; none for sets that have no place.
std::optional<std::pair<std::string, std::filesystem::path>> SplitPlace(const std::string& spec) {
  for (const std::string kind : {"idx", "cifar", "images"}) {
    if (spec.starts_with(kind + ":")) return std::pair(kind, spec.substr(kind.size() + 1));
  }
  return std::nullopt;
}

base::Status CheckExists(const std::string& spec, const std::filesystem::path& path) {
  if (path.empty()) {
    return base::InvalidInput("data '{}': the path is missing", spec)
        .WithFix(fmt::format("write {}", kForms));
  }
  std::error_code error;
  if (std::filesystem::exists(path, error)) return {};
  return base::NotFound("data '{}': {} does not exist", spec, path.string())
      .WithFix("check the path; a relative one starts at the current folder");
}

base::Result<std::unique_ptr<Source>> OpenSource(const std::string& spec,
                                                 const OpenOptions& options) {
  if (spec == "mnist") return Mnist(options);
  if (spec == "glyphs") return Glyphs();
  if (const auto place = SplitPlace(spec)) {
    const auto& [kind, path] = *place;
    MOTLEY_RETURN_IF_ERROR(CheckExists(spec, path));
    if (kind == "idx") return IdxFolder(path);
    if (kind == "cifar") return CifarFolder(path);
    return Images(path, options);
  }
  return base::InvalidInput("data '{}': unknown kind of data", spec)
      .WithFix(fmt::format("write {}", kForms));
}

base::Status CheckAgreement(const Dataset& train, const Dataset& test) {
  if (train.channels() != test.channels() || train.height() != test.height() ||
      train.width() != test.width()) {
    return base::InvalidInput("training images are {}x{}x{}, test images are {}x{}x{}",
                              train.channels(), train.height(), train.width(), test.channels(),
                              test.height(), test.width())
        .WithFix("use sets of one shape (image folders can be resized)");
  }
  if (train.classes() == test.classes()) return {};
  for (const auto& name : test.classes()) {
    if (std::find(train.classes().begin(), train.classes().end(), name) == train.classes().end()) {
      return base::InvalidInput("class '{}' of the test set is not in the training set", name);
    }
  }
  return base::InvalidInput("the training set has {} classes, the test set {}, or in another order",
                            train.classes().size(), test.classes().size());
}

// Requires that they differ.
base::Status OtherClasses(const std::string& spec, const std::vector<std::string>& its,
                          const std::vector<std::string>& jobs) {
  const auto [a, b] = std::mismatch(its.begin(), its.end(), jobs.begin(), jobs.end());
  return base::InvalidInput("data '{}': its class {} is {}, and the job's is {}", spec,
                            a - its.begin(), a == its.end() ? "missing" : "'" + *a + "'",
                            b == jobs.end() ? "missing" : "'" + *b + "'")
      .WithFix("use samples of the same classes as data.train");
}

// A failure to open `spec`, exceptions included: out of memory, or a path the system cannot take.
template <typename Function>
base::Status Opening(const std::string& spec, const std::string& place, const Function& open) {
  base::Status status;
  try {
    status = open();
  } catch (const std::exception& exception) {
    status = base::Internal("data '{}': {}", spec, exception.what());
  }
  return place.empty() ? std::move(status) : std::move(status).In(place);
}

}  // namespace

base::Result<DataPair> Open(const std::string& train, const std::string& test,
                            const OpenOptions& options) {
  std::unique_ptr<Source> source;
  DataPair pair;
  MOTLEY_RETURN_IF_ERROR(Opening(train, options.train_place, [&]() -> base::Status {
    MOTLEY_ASSIGN_OR_RETURN(source, OpenSource(train, options));
    MOTLEY_ASSIGN_OR_RETURN(pair.train, source->Open(Part::kTrain, nullptr));
    return {};
  }));
  const bool own = test.empty() || test == train;
  const std::string& place = own ? options.train_place : options.test_place;
  MOTLEY_RETURN_IF_ERROR(Opening(own ? train : test, place, [&]() -> base::Status {
    if (!own) {
      MOTLEY_ASSIGN_OR_RETURN(source, OpenSource(test, options));
    }
    const Part part = own ? Part::kTest : Part::kTestOnly;
    MOTLEY_ASSIGN_OR_RETURN(pair.test, source->Open(part, pair.train.get()));
    return CheckAgreement(*pair.train, *pair.test);
  }));
  return pair;
}

base::Result<std::shared_ptr<const Dataset>> OpenLike(const std::string& spec, const Dataset& like,
                                                      const OpenOptions& options) {
  std::shared_ptr<const Dataset> set;
  MOTLEY_RETURN_IF_ERROR(Opening(spec, options.train_place, [&]() -> base::Status {
    MOTLEY_ASSIGN_OR_RETURN(const std::unique_ptr<Source> source, OpenSource(spec, options));
    MOTLEY_ASSIGN_OR_RETURN(set, source->Open(Part::kTrain, &like));
    if (set->channels() != like.channels() || set->height() != like.height() ||
        set->width() != like.width()) {
      return base::InvalidInput("data '{}': its images are {}x{}x{}, and the job's {}x{}x{}", spec,
                                set->channels(), set->height(), set->width(), like.channels(),
                                like.height(), like.width());
    }
    if (set->classes() != like.classes()) {
      return OtherClasses(spec, set->classes(), like.classes());
    }
    return {};
  }));
  return set;
}

std::string AbsoluteSpec(const std::string& spec) {
  const auto place = SplitPlace(spec);
  if (!place || place->second.empty()) return spec;
  std::error_code error;
  const auto path = std::filesystem::absolute(place->second, error).lexically_normal();
  return error ? spec : place->first + ":" + path.string();
}

bool IsMissing(const std::string& train, const std::string& test, const OpenOptions& options) {
  return (train == "mnist" || test == "mnist") && !HasMnist(options);
}

base::Result<std::filesystem::path> Fetch(const std::string& name, const OpenOptions& options) {
  try {
    if (name == "mnist") return FetchMnist(options);
  } catch (const std::exception& exception) {
    return base::Internal("{}: {}", name, exception.what());
  }
  return base::InvalidInput("'{}' cannot be fetched", name).WithFix("only 'mnist' can be fetched");
}

}  // namespace motley::data
