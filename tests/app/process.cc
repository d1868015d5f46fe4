#include "tests/app/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "motley/base/rng.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;

constexpr double kPollSeconds = 0.001;

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Only calls that are safe between fork and exec.
[[noreturn]] void BecomeProgram(const char* folder, const char* out, const char* err, char** argv,
                                char** envp) {
  const int out_fd = ::open(out, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int err_fd = ::open(err, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (::chdir(folder) == 0 && ::dup2(out_fd, STDOUT_FILENO) >= 0 &&
      ::dup2(err_fd, STDERR_FILENO) >= 0) {
    ::execve(MOTLEY_PROGRAM, argv, envp);
  }
  ::_exit(127);
}

void WriteBigEndian(std::ofstream& file, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) file.put(static_cast<char>(number >> shift));
}

// A bright square in one of four corners, on noise.
void WritePart(const fs::path& folder, const std::string& part, int samples, std::uint64_t seed) {
  base::Rng rng(base::Key({seed}));
  std::ofstream images(folder / (part + "-images-idx3-ubyte"), std::ios::binary);
  std::ofstream labels(folder / (part + "-labels-idx1-ubyte"), std::ios::binary);
  for (const std::uint32_t number : {0x803U, static_cast<std::uint32_t>(samples), 28U, 28U}) {
    WriteBigEndian(images, number);
  }
  for (const std::uint32_t number : {0x801U, static_cast<std::uint32_t>(samples)}) {
    WriteBigEndian(labels, number);
  }
  for (int sample = 0; sample < samples; ++sample) {
    const int label = sample % 4;
    labels.put(static_cast<char>(label));
    for (int pixel = 0; pixel < 28 * 28; ++pixel) {
      const int corner = 2 * (pixel / (14 * 28)) + pixel % 28 / 14;
      images.put(static_cast<char>(rng.Below(100) + (corner == label ? 100 : 0)));
    }
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::path(testing::TempDir()) / "motley-XXXXXX").string();
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Child::Child(const fs::path& folder, const std::vector<std::string>& arguments,
             const std::map<std::string, std::string>& environment, const fs::path& out_file) {
  std::vector<std::string> argv = {"motley"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const char* path = std::getenv("PATH");
  std::map<std::string, std::string> variables = environment;
  variables.emplace("HOME", folder.string());
  variables.emplace("PATH", path == nullptr ? "" : path);
  std::vector<std::string> envp;
  for (const auto& [name, value] : variables) envp.push_back(name + "=" + value);
  const std::string out = out_file.empty() ? output_.path() / "out" : out_file;
  const std::string err = output_.path() / "err";
  std::vector<char*> argv_pointers = Pointers(argv), envp_pointers = Pointers(envp);
  pid_ = ::fork();
  if (pid_ == 0) {
    BecomeProgram(folder.c_str(), out.c_str(), err.c_str(), argv_pointers.data(),
                  envp_pointers.data());
  }
  EXPECT_GT(pid_, 0);
}

Child::~Child() {
  if (!Reap()) {
    Signal(SIGKILL);
    ::waitpid(pid_, &status_, 0);
  }
}

void Child::Signal(int signal) const {
  if (!ended_) ::kill(pid_, signal);
}

bool Child::Reap() {
  if (!ended_) ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
  return ended_;
}

bool Child::WaitUntil(const std::function<bool()>& condition, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!Reap() && std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    SleepSeconds(kPollSeconds);
  }
  return false;
}

Outcome Child::Wait(double seconds) {
  WaitUntil([] { return false; }, seconds);
  Outcome outcome;
  outcome.in_time = Reap();
  if (!outcome.in_time) {
    Signal(SIGKILL);
    ::waitpid(pid_, &status_, 0);
    ended_ = true;
  }
  if (WIFEXITED(status_)) outcome.exit_code = WEXITSTATUS(status_);
  if (WIFSIGNALED(status_)) outcome.signal = WTERMSIG(status_);
  outcome.out = Content(output_.path() / "out");
  outcome.err = Content(output_.path() / "err");
  return outcome;
}

Outcome RunMotley(const fs::path& folder, const std::vector<std::string>& arguments,
                  const std::map<std::string, std::string>& environment) {
  Outcome outcome = Child(folder, arguments, environment).Wait(60.0);
  EXPECT_TRUE(outcome.in_time) << "a child hung; it said: " << outcome.out << outcome.err;
  return outcome;
}

void SleepSeconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void WriteSmallIdx(const fs::path& folder, int train_samples, int test_samples) {
  fs::create_directories(folder);
  WritePart(folder, "train", train_samples, 1);
  WritePart(folder, "t10k", test_samples, 2);
}

std::string Content(const fs::path& file) {
  std::ostringstream content;
  content << std::ifstream(file, std::ios::binary).rdbuf();
  return content.str();
}

bool Says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

}  // namespace motley::app
