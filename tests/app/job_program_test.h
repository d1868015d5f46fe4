#ifndef MOTLEY_TESTS_APP_JOB_PROGRAM_TEST_H_
#define MOTLEY_TESTS_APP_JOB_PROGRAM_TEST_H_

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/app/process.h"

namespace motley::app {

// The real program with a job file, in a folder of its own.
class JobProgramTest : public testing::Test {
 protected:
  const std::filesystem::path& folder() const { return temporary_.path(); }
  void WriteJob(const std::string& toml) const { std::ofstream(folder() / "job.toml") << toml; }
  Outcome Run(const std::vector<std::string>& arguments) const {
    return RunMotley(folder(), arguments);
  }
  nlohmann::json Summary(const std::string& run) const {
    return nlohmann::json::parse(Content(folder() / run / "summary.json"), nullptr, false);
  }

 private:
  TemporaryFolder temporary_;
};

}  // namespace motley::app

#endif  // MOTLEY_TESTS_APP_JOB_PROGRAM_TEST_H_
