// Private samples stay where they lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>

#include "motley/base/rng.h"
#include "motley/data/open.h"
#include "motley/data/pooled_dataset.h"
#include "tests/cluster/cluster.h"
#include "tests/data/test_files.h"

namespace motley::cluster {
namespace {

constexpr int kSide = 28;
// More than what is the same in all files of a kind: a JPEG's tables.
constexpr std::size_t kHeader = 400;

// Everything that workers sent, in the order of sending.
class Tap {
 public:
  std::function<void(std::string_view)> Hook() {
    return [this](std::string_view bytes) { Add(bytes); };
  }
  void Add(std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    sent_.emplace_back(bytes);
  }
  std::vector<std::string> sent() const {
    const std::lock_guard lock(mutex_);
    return sent_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> sent_;
};

// Looks for many short strings at once.
class Search {
 public:
  static constexpr std::size_t kLength = 16;

  // Requires at least kLength bytes; the first ones are looked for.
  void For(const std::string& form, std::string_view bytes) {
    forms_[std::string(bytes.substr(0, kLength))] = form;
    prefixes_[Prefix(bytes.data())] = true;
  }
  // The forms that occur, and how often.
  std::map<std::string, int> In(const std::vector<std::string>& messages) const {
    std::map<std::string, int> found;
    for (const std::string& message : messages) {
      for (std::size_t at = 0; at + kLength <= message.size(); ++at) {
        if (!prefixes_[Prefix(message.data() + at)]) continue;
        const auto hit = forms_.find(message.substr(at, kLength));
        if (hit != forms_.end()) ++found[hit->second];
      }
    }
    return found;
  }

 private:
  static std::size_t Prefix(const char* bytes) {
    const auto byte = [&](int i) { return std::size_t{static_cast<unsigned char>(bytes[i])}; };
    return byte(0) | byte(1) << 8U | byte(2) << 16U;
  }
  std::unordered_map<std::string, std::string> forms_;
  std::vector<bool> prefixes_ = std::vector<bool>(std::size_t{1} << 24U);
};

std::string Floats(const std::vector<float>& floats) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes;
  for (const float value : floats) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    for (unsigned shift = 0; shift < 32; shift += 8) {
      bytes += static_cast<char>((word >> shift) & 0xffU);
    }
  }
  return bytes;
}

// A folder of noise that nobody could send by accident: PNG and JPEG in turns.
struct PrivateFolder {
  PrivateFolder(std::uint64_t seed, int count, const std::vector<std::string>& classes) {
    base::Rng rng(base::Key({seed, 4711}));
    for (int i = 0; i < count; ++i) {
      std::vector<std::uint8_t> pixels(kSide * kSide);
      for (std::uint8_t& pixel : pixels) pixel = static_cast<std::uint8_t>(rng.Below(256));
      files.push_back(i % 2 == 0 ? data::Png(kSide, kSide, 1, pixels)
                                 : data::Jpeg(kSide, kSide, 1, pixels));
      folder.Write(
          fmt::format("{}/image-{}.{}", classes[static_cast<std::size_t>(i) % classes.size()], i,
                      i % 2 == 0 ? "png" : "jpg"),
          files.back());
    }
  }
  std::string spec() const { return "images:" + folder.path().string(); }

  data::TestFolder folder;
  std::vector<std::string> files;  // their bytes
};

// The floats of a whole image as `transform` makes them, but for crop and flip.
std::vector<float> Whole(const data::Dataset& set, const std::vector<std::uint8_t>& pixels,
                         data::Transform transform) {
  transform.pad = transform.crop_height = transform.crop_width = 0;
  transform.training = false;
  std::vector<float> out(pixels.size());
  transform.Apply(set, pixels, 0, 0, 0, out);
  return out;
}

template <typename Value>
std::vector<Value> Middle(const std::vector<Value>& image, int row, bool flip) {
  constexpr int kFirst = 6, kCount = 16;
  const auto begin = image.begin() + row * kSide + kFirst;
  std::vector<Value> middle(begin, begin + kCount);
  if (flip) std::reverse(middle.begin(), middle.end());
  return middle;
}

// All forms of all samples of a folder. Every crop shows the middle of a row whole, so that looking
// for that finds all crops.
void LookFor(const PrivateFolder& folder, const data::Dataset& like,
             const data::Transform& transform, Search& search) {
  for (const std::string& file : folder.files) {
    for (std::size_t at = kHeader; at + 2 * Search::kLength < file.size(); at += Search::kLength) {
      search.For("file", std::string_view(file).substr(at));
    }
  }
  const auto set = data::OpenLike(folder.spec(), like, {}).value();
  for (std::int64_t i = 0; i < set->size(); ++i) {
    const auto pixels = data::DecodeOrDie(*set, static_cast<data::SampleId>(i));
    const std::vector<float> plain = Whole(*set, pixels, {}),
                             normal = Whole(*set, pixels, transform);
    for (int row = 0; row < kSide; ++row) {
      for (const bool flip : {false, true}) {
        const std::string how = flip ? ", flipped" : "";
        const auto bytes = Middle(pixels, row, flip);
        search.For("pixels" + how, std::string(bytes.begin(), bytes.end()));
        search.For("floats" + how, Floats(Middle(plain, row, flip)));
        search.For("normalised floats" + how, Floats(Middle(normal, row, flip)));
      }
    }
  }
}

// What a worker computed: how often each private sample of each epoch.
class Counts {
 public:
  AfterStep Hook() {
    return [this](const engine::StepRequest& request) {
      const std::lock_guard lock(mutex_);
      for (const data::SampleId id : request.batch->ids) {
        if (id >> 63U != 0) ++counts_[{request.batch->epoch, id}];
      }
    };
  }
  // Every sample of `size` once in each of `epochs`.
  void ExpectOnce(const std::string& worker, std::int64_t size, std::uint64_t epochs) const {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(counts_.size(), static_cast<std::size_t>(size) * epochs) << worker;
    const data::SampleId first = data::FirstPrivateId(worker);
    for (const auto& [key, count] : counts_) {
      EXPECT_EQ(count, 1) << worker;
      EXPECT_LT(key.second - first, static_cast<std::uint64_t>(size)) << worker;
    }
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::uint64_t, data::SampleId>, int> counts_;
};

const std::vector<std::string>& Classes() {
  static const std::vector<std::string> classes = FirstGlyphs(1, 1).train->classes();
  return classes;
}

// How gradients travel: through the server, by Gloo, or to the worker that holds the other range.
class EveryWayTest : public testing::TestWithParam<Way> {
 protected:
  static TestCluster::Options Options(const SmallJob& job) {
    TestCluster::Options options;
    options.job = job;
    options.gloo = GetParam() == Way::kGloo;
    options.shards = GetParam() == Way::kShards ? 2 : 1;
    options.min_workers = 2;
    options.shares = {1, 2};
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, EveryWayTest,
                         testing::Values(Way::kServer, Way::kGloo, Way::kShards), NameOf);

TEST_P(EveryWayTest, NoPrivateSampleIsInAnyMessageAndTheSearchWouldFindIt) {
  // Two classes only on each of them.
  const PrivateFolder a(1, 24, {Classes()[0], Classes()[1]}),
      b(2, 16, {Classes()[7], Classes()[3]});
  const SmallJob job{.train = 60, .test = 20, .batch = 20, .epochs = 2, .augment = true};
  Tap tap;
  Counts counts_a, counts_b;
  TestCluster cluster(Options(job));
  cluster.AddWorker({.name = "a",
                     .make_device = DeviceWith({}, counts_a.Hook()),
                     .private_data = a.spec(),
                     .on_sent = tap.Hook()});
  cluster.AddWorker({.name = "b",
                     .make_device = DeviceWith({}, counts_b.Hook()),
                     .private_data = b.spec(),
                     .on_sent = tap.Hook()});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.samples, 2 * (60 + 24 + 16));
  EXPECT_EQ(report->state.step, 2 * 5);
  counts_a.ExpectOnce("a", 24, 2);
  counts_b.ExpectOnce("b", 16, 2);
  EXPECT_EQ(cluster.CountTold("unreachable"), 0);
  EXPECT_EQ(cluster.coordinator().traffic().private_data, 0);
  EXPECT_GT(cluster.coordinator().traffic().public_data, 0);  // these were fetched, and asked for

  Search search;
  const data::DataPair glyphs = FirstGlyphs(1, 1);
  const data::Transform& transform = cluster.train_options().train_transform;
  LookFor(a, *glyphs.train, transform, search);
  LookFor(b, *glyphs.train, transform, search);
  const auto sent = tap.sent();
  EXPECT_GT(sent.size(), 50U);
  for (const auto& [form, count] : search.In(sent)) ADD_FAILURE() << count << " times " << form;

  // The same search over one leak of each form.
  const auto leaks = [&](const std::string& bytes) {
    return search.In({"header " + bytes + " trailer"});
  };
  EXPECT_GE(leaks(a.files[0])["file"], 10);
  EXPECT_GE(leaks(b.files[1])["file"], 10);
  const auto set = data::OpenLike(b.spec(), *glyphs.train, {}).value();
  const auto pixels = data::DecodeOrDie(*set, 3);
  EXPECT_EQ(leaks(std::string(pixels.begin(), pixels.end()))["pixels"], kSide);
  EXPECT_EQ(leaks(std::string(pixels.rbegin(), pixels.rend()))["pixels, flipped"], kSide);
  EXPECT_EQ(leaks(Floats(Whole(*set, pixels, {})))["floats"], kSide);
  int plain = 0, flipped = 0;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<float> out(kSide * kSide);
    transform.Apply(*set, pixels, /*seed=*/1, epoch, /*id=*/3, out);
    auto found = leaks(Floats(out));
    plain += found["normalised floats"] > 0 ? 1 : 0;
    flipped += found["normalised floats, flipped"] > 0 ? 1 : 0;
  }
  EXPECT_EQ(plain + flipped, 20);  // whatever the crop
  EXPECT_GT(plain, 0);
  EXPECT_GT(flipped, 0);
}

// A leak through everything that lies between a device and the network.
TEST_P(EveryWayTest, ASampleThatADeviceHidesInItsGradientIsFoundInWhatItsWorkerSends) {
  const PrivateFolder folder(3, 24, {Classes()[0], Classes()[1]});
  Tap tap;
  TestCluster cluster(Options({.train = 60, .test = 20, .batch = 20, .augment = true}));
  const auto hide = [](const engine::StepRequest& request) {
    const auto& ids = request.batch->ids;
    const auto own = std::find_if(ids.begin(), ids.end(), data::IsPrivate);
    if (own == ids.end()) return;
    const auto image = request.batch->images.begin() + (own - ids.begin()) * kSide * kSide;
    std::copy(image, image + kSide * kSide, request.gradient.begin());
  };
  cluster.AddWorker({.name = "a",
                     .make_device = DeviceWith({}, hide),
                     .private_data = folder.spec(),
                     .on_sent = tap.Hook()});
  cluster.AddWorker({.name = "b"});
  ASSERT_TRUE(cluster.Run().ok());
  Search search;
  LookFor(folder, *FirstGlyphs(1, 1).train, cluster.train_options().train_transform, search);
  auto found = search.In(tap.sent());
  EXPECT_GT(found["normalised floats"] + found["normalised floats, flipped"], 0);
}

TEST(PrivacyTest, AFolderWithAnUnknownClassIsRefusedByName) {
  const PrivateFolder folder(3, 4, {Classes()[0], "unheard-of"});
  Tap tap;
  TestCluster cluster({.job = {.train = 40, .test = 20}, .min_workers = 1});
  cluster.AddWorker({.name = "bad", .private_data = folder.spec(), .on_sent = tap.Hook()});
  const auto& ended = cluster.Ended(0);
  ASSERT_FALSE(ended.ok());
  const std::string message = ended.status().message();
  EXPECT_NE(message.find("private data"), std::string::npos) << message;
  EXPECT_NE(message.find("'unheard-of'"), std::string::npos) << message;
  EXPECT_NE(message.find("image-1.jpg"), std::string::npos) << message;
  // Others learn that it is so, and no name of a file or a class.
  const auto count = [&](const std::string& part) {
    const auto sent = tap.sent();
    return std::count_if(sent.begin(), sent.end(), [&](const std::string& bytes) {
      return bytes.find(part) != std::string::npos;
    });
  };
  EXPECT_EQ(count("its private data cannot be used"), 1);
  EXPECT_EQ(count("image-1"), 0);
  EXPECT_EQ(count("unheard-of"), 0);
}

TEST(PrivacyTest, AFolderWithOtherImagesIsRefused) {
  const data::TestFolder folder;
  folder.Write(Classes()[0] + "/small.png", data::Png(20, 28, 1, std::vector<std::uint8_t>(560)));
  TestCluster cluster({.job = {.train = 40, .test = 20}, .min_workers = 1});
  cluster.AddWorker({.private_data = "images:" + folder.path().string()});
  const auto& ended = cluster.Ended(0);
  ASSERT_FALSE(ended.ok());
  EXPECT_NE(ended.status().message().find("small.png"), std::string::npos);
  EXPECT_NE(ended.status().message().find("20x28"), std::string::npos);
}

TEST(PrivacyTest, SamplesOfADeviceThatDiesAreReportedAndTheJobEnds) {
  const PrivateFolder folder(4, 100, {Classes()[4]});
  const SmallJob job{.train = 200, .test = 20, .batch = 30, .epochs = 2};
  TestCluster cluster({.job = job, .min_workers = 2});
  cluster.AddWorker({.name = "stays"});
  cluster.AddWorker({.name = "dies",
                     .make_device = DeviceWith([](std::int64_t step) {
                       return step == 4 ? base::Internal("smoke") : base::Status();
                     }),
                     .private_data = folder.spec()});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.epoch, 2U);
  // Four steps of 10 private samples of 30 were done.
  EXPECT_EQ(cluster.CountTold("60 private samples of dies were not trained on in epoch 1"), 1);
  EXPECT_EQ(cluster.CountTold("100 private samples of dies were not trained on in epoch 2"), 1);
  EXPECT_EQ(report->state.samples, 2 * 200 + 40);
}

}  // namespace
}  // namespace motley::cluster
