#ifndef MOTLEY_TESTS_APP_PROCESS_H_
#define MOTLEY_TESTS_APP_PROCESS_H_

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace motley::app {

// How a child ended, and what it said.
struct Outcome {
  int exit_code = -1;  // -1: by a signal
  int signal = 0;
  bool in_time = true;  // false: it was killed at the deadline
  std::string out, err;
};

// A new folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The real program in a process of its own, with `folder` as its current folder and as its home.
// Of this process's environment it sees PATH alone, so that a user's settings cannot change a test.
// With `out` its standard output goes to that file instead of into the outcome.
class Child {
 public:
  Child(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
        const std::map<std::string, std::string>& environment = {},
        const std::filesystem::path& out = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Waits until the child ends; kills it after `seconds`.
  Outcome Wait(double seconds);
  // Waits until `condition` holds while the child runs. False: it ended, or `seconds` passed.
  bool WaitUntil(const std::function<bool()>& condition, double seconds);

 private:
  bool Reap();

  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
  TemporaryFolder output_;
};

// Runs the program to its end, at most a minute.
Outcome RunMotley(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
                  const std::map<std::string, std::string>& environment = {});

void SleepSeconds(double seconds);

// An IDX folder of 28x28 pictures in four classes, which a small net learns in a few steps.
void WriteSmallIdx(const std::filesystem::path& folder, int train_samples, int test_samples);

// The whole file; empty when there is none.
std::string Content(const std::filesystem::path& file);

bool Says(const std::string& text, const std::string& words);

}  // namespace motley::app

#endif  // MOTLEY_TESTS_APP_PROCESS_H_
