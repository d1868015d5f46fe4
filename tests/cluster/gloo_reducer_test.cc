#include "motley/cluster/gloo_reducer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

namespace motley::cluster {
namespace {

using Array = std::shared_ptr<std::vector<float>>;
using Reducers = std::vector<std::unique_ptr<GlooReducer>>;

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class MemoryStore final : public RendezvousStore {
 public:
  base::Status Set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return {};
  }

  base::Result<std::vector<std::string>> Wait(const std::vector<std::string>& keys,
                                              double seconds) override {
    std::unique_lock lock(mutex_);
    const bool all = changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
      return std::all_of(keys.begin(), keys.end(), [&](auto& k) { return values_.contains(k); });
    });
    if (!all) return base::Unavailable("a key is missing");
    std::vector<std::string> found;
    found.reserve(keys.size());
    for (const auto& key : keys) found.push_back(values_[key]);
    return {std::move(found)};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// Between processes: a file for each key.
class FileStore final : public RendezvousStore {
 public:
  explicit FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  base::Status Set(const std::string& key, const std::string& value) override {
    const auto path = folder_ / key;
    std::ofstream(path.string() + ".part", std::ios::binary) << value;
    std::filesystem::rename(path.string() + ".part", path);
    return {};
  }

  base::Result<std::vector<std::string>> Wait(const std::vector<std::string>& keys,
                                              double seconds) override {
    std::vector<std::string> found;
    for (const Stopwatch watch; found.size() < keys.size();) {
      std::ifstream file(folder_ / keys[found.size()], std::ios::binary);
      if (file) {
        found.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      } else if (watch.Seconds() > seconds) {
        return base::Unavailable("a key is missing");
      } else {
        Sleep(0.001);
      }
    }
    return {std::move(found)};
  }

 private:
  const std::filesystem::path folder_;
};

GlooOptions Options(int size) {
  return {.size = size,
          .address = "127.0.0.1",
          .store = std::make_shared<MemoryStore>(),
          .form_seconds = 20.0,
          .reduce_seconds = 20.0,
          .bucket_floats = 1000};
}

// Runs body(rank) for every member at the same time, each in a thread of its own.
void Together(int members, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(members));
  for (int rank = 0; rank < members; ++rank) threads.emplace_back(body, rank);
  for (auto& thread : threads) thread.join();
}

Reducers FormGroup(const GlooOptions& options) {
  Reducers group(static_cast<std::size_t>(options.size));
  Together(options.size, [&](int rank) {
    GlooOptions mine = options;
    mine.rank = rank;
    auto reducer = GlooReducer::Form(mine, nullptr);
    ASSERT_TRUE(reducer.ok()) << reducer.status().ToString();
    group[static_cast<std::size_t>(rank)] = std::move(reducer).value();
  });
  return group;
}

// Small whole numbers, different for each member and element: their sums are exact in any order.
float Value(int rank, std::int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 64); }

Array Gradient(int rank, std::int64_t size) {
  auto array = std::make_shared<std::vector<float>>(size);
  for (std::int64_t i = 0; i < size; ++i) (*array)[i] = Value(rank, i);
  return array;
}

float SumOf(int members, std::int64_t i) {
  float sum = 0.0f;
  for (int rank = 0; rank < members; ++rank) sum += Value(rank, i);
  return sum;
}

// How many elements are not the sum over all members.
std::int64_t WrongElements(const std::vector<float>& array, int members) {
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < std::ssize(array); ++i) wrong += array[i] != SumOf(members, i);
  return wrong;
}

// One step of one member that announces everything at once.
void ExpectSum(GlooReducer& reducer, int rank, int members, std::int64_t size) {
  const Array array = Gradient(rank, size);
  reducer.Begin(array);
  reducer.Announce(0, size);
  const base::Status status = reducer.Finish(nullptr);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(WrongElements(*array, members), 0) << size << " floats over " << members;
  EXPECT_EQ(array.use_count(), 1);
}

void ExpectAWorkingGroup(int members) {
  Reducers group = FormGroup(Options(members));
  Together(members, [&](int rank) { ExpectSum(*group[rank], rank, members, 2500); });
}

// True once nobody else owns it: a thread that was left behind has ended.
bool IsReleased(const std::function<bool()>& owned, double seconds) {
  for (const Stopwatch watch; owned();) {
    if (watch.Seconds() > seconds) return false;
    Sleep(0.005);
  }
  return true;
}

class GlooReducerOfTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Members, GlooReducerOfTest, testing::Values(1, 2, 3, 5, 8));

TEST_P(GlooReducerOfTest, SumsArraysOfAnySizeStepAfterStep) {
  const int members = GetParam();
  Reducers group = FormGroup(Options(members));
  Together(members, [&](int rank) {
    for (const std::int64_t size : {1, 2, 3, 7, 0, 999, 1000, 1001, 4097, 30011, 5, 30011}) {
      ExpectSum(*group[rank], rank, members, size);
    }
  });
}

TEST_P(GlooReducerOfTest, SumsAnArrayOfOneBucketInMoreThanOneOfGloosSegments) {
  const int members = GetParam();
  GlooOptions options = Options(members);
  options.bucket_floats = std::int64_t{1} << 23;
  Reducers group = FormGroup(options);
  Together(members, [&](int rank) { ExpectSum(*group[rank], rank, members, 2'500'003); });
}

// Cuts [0, size) into pieces of any length and shuffles them.
std::vector<std::pair<std::int64_t, std::int64_t>> OddPieces(std::int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for (std::int64_t offset = 0; offset < size;) {
    const std::int64_t count = std::min<std::int64_t>(size - offset, random() % 700);
    pieces.emplace_back(offset, count);
    offset += count;
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

TEST_P(GlooReducerOfTest, SumsWhatIsAnnouncedInOddPiecesAndOrdersWhileItReduces) {
  const int members = GetParam();
  constexpr std::int64_t kSize = 8021;
  Reducers group = FormGroup(Options(members));
  Together(members, [&](int rank) {
    for (unsigned step = 0; step < 3; ++step) {
      const auto array = std::make_shared<std::vector<float>>(kSize);
      const auto pieces = OddPieces(kSize, step * 8 + static_cast<unsigned>(rank));
      group[rank]->Begin(array);
      Together(3, [&](int lane) {
        for (std::size_t i = lane; i < pieces.size(); i += 3) {
          const auto [offset, count] = pieces[i];
          for (auto k = offset; k < offset + count; ++k) (*array)[k] = Value(rank, k);
          group[rank]->Announce(offset, count);
        }
      });
      ASSERT_TRUE(group[rank]->Finish(nullptr).ok());
      EXPECT_EQ(WrongElements(*array, members), 0);
    }
  });
}

TEST(GlooReducerTest, SumsTheEndWhileTheBeginningIsStillBeingWritten) {
  // How long the sum of one bucket takes is unknown: more and more time, until it was enough.
  for (const double seconds : {0.05, 0.2, 1.0, 5.0}) {
    Reducers group = FormGroup(Options(2));
    const std::vector<Array> arrays = {Gradient(0, 2500), Gradient(1, 2500)};
    for (int rank = 0; rank < 2; ++rank) {
      group[rank]->Begin(arrays[rank]);
      group[rank]->Announce(1400, 1100);
    }
    Sleep(seconds);
    group.clear();  // and with it the threads that write
    for (int rank = 0; rank < 2; ++rank) {
      for (int i = 0; i < 1500; ++i) ASSERT_EQ((*arrays[rank])[i], Value(rank, i));
    }
    if ((*arrays[0])[1500] == SumOf(2, 1500) && (*arrays[1])[2499] == SumOf(2, 2499)) return;
  }
  FAIL() << "the bucket at the end was not summed";
}

TEST(GlooReducerTest, SumsTheLatePartLastSoThatTheOthersDoNotWaitForIt) {
  for (const double seconds : {0.05, 0.2, 1.0, 5.0}) {
    GlooOptions options = Options(2);
    options.late_floats = 1234;
    Reducers group = FormGroup(options);
    const std::vector<Array> arrays = {Gradient(0, 4000), Gradient(1, 4000)};
    for (int rank = 0; rank < 2; ++rank) {
      group[rank]->Begin(arrays[rank]);
      group[rank]->Announce(0, 4000 - 1234);
    }
    Sleep(seconds);
    group.clear();
    for (int i = 4000 - 1234; i < 4000; ++i) ASSERT_EQ((*arrays[0])[i], Value(0, i));
    if ((*arrays[0])[0] == SumOf(2, 0) && (*arrays[1])[2765] == SumOf(2, 2765)) return;
  }
  FAIL() << "what was announced was not summed";
}

TEST(GlooReducerTest, SumsArraysWithALatePartOfAnySize) {
  for (const std::int64_t late : {1, 999, 1000, 2001, 5000}) {
    GlooOptions options = Options(3);
    options.late_floats = late;
    Reducers group = FormGroup(options);
    Together(3, [&](int rank) {
      for (const std::int64_t size : {1, 1000, 3003, 5000}) ExpectSum(*group[rank], rank, 3, size);
    });
  }
}

TEST(GlooReducerTest, FormFailsWithinItsLimitWhenAMemberNeverComes) {
  GlooOptions options = Options(3);
  options.form_seconds = 0.4;
  const std::weak_ptr<RendezvousStore> store = options.store;
  Together(2, [&](int rank) {
    GlooOptions mine = options;
    mine.rank = rank;
    const Stopwatch watch;
    const auto reducer = GlooReducer::Form(mine, nullptr);
    EXPECT_EQ(reducer.status().code(), base::Code::kUnavailable) << reducer.status().ToString();
    EXPECT_LT(watch.Seconds(), 1.5);
  });
  options.store.reset();
  EXPECT_TRUE(IsReleased([&] { return !store.expired(); }, 5.0));
  ExpectAWorkingGroup(2);
}

TEST(GlooReducerTest, FormIsCancelledSoon) {
  GlooOptions options = Options(2);
  options.form_seconds = 1.0;
  const std::weak_ptr<RendezvousStore> store = options.store;
  std::atomic<bool> cancel = false;
  std::thread canceller([&] {
    Sleep(0.1);
    cancel = true;
  });
  const Stopwatch watch;
  const auto reducer = GlooReducer::Form(options, &cancel);
  EXPECT_LT(watch.Seconds(), 1.0);
  EXPECT_EQ(reducer.status().code(), base::Code::kCancelled);
  canceller.join();
  options.store.reset();
  EXPECT_TRUE(IsReleased([&] { return !store.expired(); }, 10.0));
}

TEST(GlooReducerTest, FormRefusesAnAddressThatIsNotOfThisMachine) {
  for (const char* address : {"not a host name", "192.0.2.1"}) {
    GlooOptions options = Options(2);
    options.address = address;
    const auto reducer = GlooReducer::Form(options, nullptr);
    EXPECT_EQ(reducer.status().code(), base::Code::kInvalidInput) << address;
  }
}

TEST(GlooReducerTest, FinishFailsSoonOnAllWhenAMemberDiesAndTheSurvivorsFormANewGroup) {
  Reducers group = FormGroup(Options(5));
  Together(5, [&](int rank) {
    group[rank]->Begin(Gradient(rank, 10'000));
    group[rank]->Announce(5000, 5000);
    if (rank == 2) {
      Sleep(0.2);
      group[rank].reset();
      return;
    }
    const Stopwatch watch;
    group[rank]->Announce(0, 5000);
    const base::Status status = group[rank]->Finish(nullptr);
    EXPECT_EQ(status.code(), base::Code::kUnavailable) << status.ToString();
    EXPECT_LT(watch.Seconds(), 3.0);  // not reduce_seconds, though only 1 and 3 are its neighbours
  });
  ExpectAWorkingGroup(4);
}

TEST_P(GlooReducerOfTest, LetsAMemberLeaveAsSoonAsItsOwnSumIsDone) {
  const int members = GetParam();
  Reducers group = FormGroup(Options(members));
  Together(members, [&](int rank) {
    ExpectSum(*group[rank], rank, members, 2500);
    group[rank].reset();
  });
}

TEST(GlooReducerTest, FinishFailsSoonWhenAnotherMemberIsCancelled) {
  Reducers group = FormGroup(Options(3));
  Together(2, [&](int rank) {  // the third stalls
    const Stopwatch watch;
    const std::atomic<bool> cancel = rank == 0;
    group[rank]->Begin(Gradient(rank, 5000));
    group[rank]->Announce(0, 5000);
    const base::Status status = group[rank]->Finish(&cancel);
    EXPECT_EQ(status.code(), rank == 0 ? base::Code::kCancelled : base::Code::kUnavailable);
    EXPECT_LT(watch.Seconds(), 3.0);
  });
}

TEST(GlooReducerTest, FinishFailsAfterItsLimitWhenAMemberStalls) {
  GlooOptions options = Options(3);
  options.reduce_seconds = 0.3;
  Reducers group = FormGroup(options);
  Together(2, [&](int rank) {
    const Stopwatch watch;
    group[rank]->Begin(Gradient(rank, 5000));
    group[rank]->Announce(0, 5000);
    EXPECT_EQ(group[rank]->Finish(nullptr).code(), base::Code::kUnavailable);
    EXPECT_GT(watch.Seconds(), 0.2);
    EXPECT_LT(watch.Seconds(), 2.0);
  });
}

TEST(GlooReducerTest, FinishIsCancelledSoonWhenAMemberStallsAndTheOthersFormANewGroup) {
  GlooOptions options = Options(3);
  options.reduce_seconds = 3.0;
  Reducers group = FormGroup(options);
  std::atomic<bool> cancel = false;
  std::thread canceller([&] {
    Sleep(0.1);
    cancel = true;
  });
  Together(2, [&](int rank) {
    const Array array = Gradient(rank, 5000);
    const Stopwatch watch;
    group[rank]->Begin(array);
    group[rank]->Announce(0, 5000);
    const base::Status status = group[rank]->Finish(&cancel);
    // Whoever looks at the flag second may have lost the first one already.
    EXPECT_TRUE(status.code() == base::Code::kCancelled ||
                status.code() == base::Code::kUnavailable);
    EXPECT_LT(watch.Seconds(), 1.0);
    EXPECT_TRUE(IsReleased([&] { return array.use_count() > 1; }, options.reduce_seconds + 1.0));
  });
  canceller.join();
  ExpectAWorkingGroup(2);
}

TEST(GlooReducerTest, StaysBrokenAfterAFailure) {
  Reducers group = FormGroup(Options(2));
  group[1].reset();
  for (int step = 0; step < 3; ++step) {
    group[0]->Begin(Gradient(0, 10));
    group[0]->Announce(0, 10);
    EXPECT_EQ(group[0]->Finish(nullptr).code(), base::Code::kUnavailable);
  }
}

TEST(GlooReducerTest, IsDestroyedInTheMiddleOfAStepWithoutWaitingForItsLimit) {
  Reducers group = FormGroup(Options(3));
  const std::vector<Array> arrays = {Gradient(0, 5000), Gradient(1, 5000)};
  for (int rank = 0; rank < 2; ++rank) {
    group[rank]->Begin(arrays[rank]);
    group[rank]->Announce(2000, 3000);
  }
  Sleep(0.1);
  const Stopwatch watch;
  group[0].reset();
  group[1].reset();
  EXPECT_LT(watch.Seconds(), 2.0);
  for (const Array& array : arrays) {
    EXPECT_TRUE(IsReleased([&] { return array.use_count() > 1; }, 2.0));
  }
}

// The other member as a process, because only a process can stop in the middle of a message. Then
// Gloo leaves some waits without an answer, and the thread may have to be left behind.
class PeerProcess {
 public:
  PeerProcess(const GlooOptions& options, std::int64_t floats) {
    child_ = fork();
    if (child_ != 0) return;
    GlooOptions mine = options;
    mine.rank = 1;
    auto reducer = GlooReducer::Form(mine, nullptr);
    while (reducer.ok()) {
      reducer->get()->Begin(std::make_shared<std::vector<float>>(floats, 1.0f));
      reducer->get()->Announce(0, floats);
      if (!reducer->get()->Finish(nullptr).ok()) break;
    }
    _exit(0);
  }
  ~PeerProcess() {
    Signal(SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void Signal(int signal) const { kill(child_, signal); }

 private:
  pid_t child_ = -1;
};

class GlooReducerProcessTest : public testing::Test {
 protected:
  static constexpr std::int64_t kFloats = 2'000'000;

  GlooReducerProcessTest() {
    std::string name = (std::filesystem::temp_directory_path() / "gloo_reducer_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    options_ = Options(2);
    options_.store = std::make_shared<FileStore>(folder_);
    options_.reduce_seconds = 3.0;
    options_.bucket_floats = kFloats;
  }
  ~GlooReducerProcessTest() override { std::filesystem::remove_all(folder_); }

  struct Outcome {
    base::Status status;
    double seconds = 0.0;  // from the signal
  };

  // Steps of a new group, in the middle of one of which the peer gets `signal`; 0.1 s after that
  // this member cancels.
  Outcome StepsWithASignal(int signal, double delay_seconds) {
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(file);
    }
    const PeerProcess peer(options_, kFloats);
    auto reducer = GlooReducer::Form(options_, nullptr);
    if (!reducer.ok()) return {reducer.status()};
    std::atomic<bool> cancel = false;
    std::optional<Stopwatch> watch;
    std::thread stopper([&] {
      Sleep(delay_seconds);
      peer.Signal(signal);
      watch.emplace();
      Sleep(0.1);
      cancel = true;
    });
    const auto array = std::make_shared<std::vector<float>>(kFloats, 1.0f);
    base::Status status;
    while (status.ok()) {
      (*reducer)->Begin(array);
      (*reducer)->Announce(0, kFloats);
      status = (*reducer)->Finish(&cancel);
    }
    const Stopwatch since_the_end;
    stopper.join();
    *reducer = nullptr;
    EXPECT_TRUE(IsReleased([&] { return array.use_count() > 1; }, options_.reduce_seconds + 1.0));
    return {status, watch->Seconds() - since_the_end.Seconds()};
  }

  std::filesystem::path folder_;
  GlooOptions options_;
};

TEST_F(GlooReducerProcessTest, FinishIsCancelledSoonWhenAProcessStopsInTheMiddleOfAMessage) {
  for (const double delay : {0.051, 0.054, 0.057, 0.061}) {
    const Outcome outcome = StepsWithASignal(SIGSTOP, delay);
    EXPECT_EQ(outcome.status.code(), base::Code::kCancelled) << outcome.status.ToString();
    EXPECT_LT(outcome.seconds, 1.0);
  }
}

TEST_F(GlooReducerProcessTest, FinishFailsSoonWhenAProcessIsKilledAndThisOneSurvives) {
  std::signal(SIGPIPE, SIG_DFL);  // whatever this program was started with
  for (const double delay : {0.051, 0.053, 0.055, 0.057, 0.059, 0.061, 0.063, 0.065}) {
    const Outcome outcome = StepsWithASignal(SIGKILL, delay);
    EXPECT_FALSE(outcome.status.ok());
    EXPECT_LT(outcome.seconds, 1.0);
  }
}

// A relay between the members 0 and 1 that stops in the middle of a message: it forwards `limit`
// bytes to member 0 and then no more, but keeps the connections open. For Gloo the higher address
// calls: member 0 at 127.0.0.3 calls the relay at 127.0.0.2, which calls member 1 at 127.0.0.1.
class Relay {
 public:
  explicit Relay(std::int64_t limit) : limit_(limit) {
    address_.sin_family = AF_INET;
    inet_pton(AF_INET, "127.0.0.2", &address_.sin_addr);
    socklen_t length = sizeof(address_);
    EXPECT_EQ(bind(listener_, Raw(address_), length), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, Raw(address_), &length), 0);
  }
  ~Relay() {
    Close();
    close(listener_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  bool IsUsedUp() const { return limit_ == 0; }

  void Close() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  // Takes what member 1 published, and gives what member 0 shall find instead.
  std::string Redirect(std::string published) {
    sockaddr_in target{};
    std::memcpy(&target, published.data(), sizeof(target));  // Gloo's value begins so
    std::memcpy(published.data(), &address_, sizeof(address_));
    thread_ = std::thread([this, target] { Run(target); });
    return published;
  }

 private:
  static sockaddr* Raw(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

  void Run(sockaddr_in target) {
    const int caller = accept(listener_, nullptr, nullptr);
    const int callee = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(callee, Raw(target), sizeof(target)), 0);
    bool open = true;
    while (open && !stop_) {
      pollfd ends[] = {{caller, POLLIN, 0}, {limit_ > 0 ? callee : -1, POLLIN, 0}};
      poll(ends, 2, /*ms=*/10);
      if (ends[0].revents != 0) open = Forward(caller, callee, 1 << 16) > 0;
      if (ends[1].revents != 0) {
        const auto forwarded = Forward(callee, caller, std::min<std::int64_t>(limit_, 1 << 16));
        limit_ -= forwarded;
        open = open && forwarded > 0;
      }
    }
    close(caller);
    close(callee);
  }

  static ssize_t Forward(int from, int to, std::int64_t most) {
    std::vector<char> bytes(static_cast<std::size_t>(most));
    const ssize_t count = read(from, bytes.data(), bytes.size());
    return count <= 0 ? count : send(to, bytes.data(), count, MSG_NOSIGNAL);
  }

  std::atomic<std::int64_t> limit_;
  const int listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address_{};
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// What member 0 sees of a store: the relay in the place of member 1.
class RelayedStore final : public RendezvousStore {
 public:
  RelayedStore(std::shared_ptr<RendezvousStore> store, Relay* relay)
      : store_(std::move(store)), relay_(relay) {}
  base::Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(key, value);
  }
  base::Result<std::vector<std::string>> Wait(const std::vector<std::string>& keys,
                                              double seconds) override {
    auto values = store_->Wait(keys, seconds);
    for (std::size_t i = 0; i < keys.size() && values.ok(); ++i) {
      if (keys[i] == "1") (*values)[i] = relay_->Redirect((*values)[i]);
    }
    return values;
  }

 private:
  const std::shared_ptr<RendezvousStore> store_;
  Relay* const relay_;
};

// Two members sum 4 MB in segments of 1 MB, two for the sum and two for the result. When it is
// interrupted in the middle of the second one, Gloo forgets to wake who waits for it.
class GlooReducerRelayTest : public testing::Test {
 protected:
  static constexpr std::int64_t kFloats = std::int64_t{1} << 20;

  // One step of both, and how it ends for member 0. `disturb` is called when nothing moves any
  // more.
  base::Status Step(const std::function<void()>& disturb) {
    GlooOptions options = Options(2);
    options.bucket_floats = kFloats;
    std::vector<GlooOptions> each = {options, options};
    each[0].address = "127.0.0.3";
    each[0].store = std::make_shared<RelayedStore>(options.store, &relay_);
    each[0].reduce_seconds = kReduceSeconds;
    each[1].rank = 1;
    base::Status outcome;
    Together(3, [&](int rank) {
      if (rank == 2) {
        while (!relay_.IsUsedUp()) Sleep(0.005);
        Sleep(0.1);  // for what it forwarded to arrive
        disturb();
        return;
      }
      auto reducer = GlooReducer::Form(each[rank], nullptr);
      ASSERT_TRUE(reducer.ok()) << reducer.status().ToString();
      (*reducer)->Begin(rank == 0 ? array_ : Gradient(1, kFloats));
      (*reducer)->Announce(0, kFloats);
      const base::Status status = (*reducer)->Finish(&cancel_);
      if (rank == 0) outcome = status;
    });
    return outcome;
  }

  static constexpr double kReduceSeconds = 3.0;
  Relay relay_{/*limit=*/1'500'000};
  std::atomic<bool> cancel_ = false;
  const Array array_ = Gradient(0, kFloats);
  const Stopwatch watch_{};
};

TEST_F(GlooReducerRelayTest, CancelLeavesAThreadBehindThatNothingWakesAndItEndsWithinItsLimit) {
  const base::Status status = Step([this] { cancel_ = true; });
  EXPECT_EQ(status.code(), base::Code::kCancelled) << status.ToString();
  EXPECT_LT(watch_.Seconds(), 2.0);
  EXPECT_EQ(array_.use_count(), 2);  // the thread is still there, as is the array that it may write
  EXPECT_TRUE(IsReleased([&] { return array_.use_count() > 1; }, kReduceSeconds + 1.0));
  ExpectAWorkingGroup(2);
}

TEST_F(GlooReducerRelayTest, FinishFailsSoonWhenTheConnectionIsLostThoughNothingWakesTheThread) {
  const base::Status status = Step([this] { relay_.Close(); });
  EXPECT_EQ(status.code(), base::Code::kUnavailable) << status.ToString();
  EXPECT_LT(watch_.Seconds(), 2.5);
  EXPECT_TRUE(IsReleased([&] { return array_.use_count() > 1; }, kReduceSeconds + 1.0));
}

TEST(GlooReducerDeathTest, RefusesWhatIsAnnouncedTwiceOrNeverOrOutside) {
  auto reducer = GlooReducer::Form({.bucket_floats = 4}, nullptr);
  ASSERT_TRUE(reducer.ok());
  (*reducer)->Begin(std::make_shared<std::vector<float>>(10));
  EXPECT_DEATH((*reducer)->Announce(4, 7), "is not in an array of 10");
  EXPECT_DEATH((void)(*reducer)->Finish(nullptr), "10 floats were not announced");
  (*reducer)->Announce(2, 5);
  EXPECT_DEATH((*reducer)->Announce(5, 3), "announced twice");
}

}  // namespace
}  // namespace motley::cluster
