#ifndef MOTLEY_DATA_SUBPROCESS_H_
#define MOTLEY_DATA_SUBPROCESS_H_

#include <filesystem>
#include <string>
#include <vector>

#include "motley/base/status.h"

namespace motley::data {

struct Command {
  std::vector<std::string> arguments;  // the program, looked up in PATH, first
  std::filesystem::path folder;        // working directory
  double deadline_seconds = 60.0;
};

// Runs a program without a shell and waits for it. Its standard output is dropped; the end of its
// standard error becomes part of the message when it fails. kNotFound: there is no such program.
// kCancelled: the deadline passed; the program and all its children were killed. kUnavailable: it
// ended with another code than 0.
base::Status RunCommand(const Command& command);

}  // namespace motley::data

#endif  // MOTLEY_DATA_SUBPROCESS_H_
