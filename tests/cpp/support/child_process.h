// Runs one test case of this executable in a separate process, with environment variables set: for settings that are
// read once per process, and to check how a process ends. NPU_TEST_EMULATOR is the command that runs a program of this
// architecture on a machine of another, split at spaces (make arm64).
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace npu::test {

inline std::string PathOfThisProgram() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return {path, length > 0 ? static_cast<size_t>(length) : 0};
}

// The command that starts this program again.
inline std::vector<std::string> CommandOfThisProgram() {
  std::vector<std::string> command;
  const char* emulator = getenv("NPU_TEST_EMULATOR");
  std::istringstream words(emulator ? emulator : "");
  for (std::string word; words >> word;) command.push_back(word);
  command.push_back(PathOfThisProgram());
  return command;
}

struct ChildResult {
  bool timed_out = false;
  int exit_code = -1;  // -1: ended by a signal
  std::string output;
};

// `test_case` is a doctest name, normally of a case marked doctest::skip().
inline ChildResult RunTestCase(const std::string& test_case, const std::map<std::string, std::string>& environment,
                               std::chrono::seconds timeout = std::chrono::minutes(15)) {
  ChildResult result;
  const int log = memfd_create("output", 0);
  std::vector<std::string> command = CommandOfThisProgram();
  command.insert(command.end(), {"--test-case=" + test_case, "--no-skip"});
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      result.timed_out = true;
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!result.timed_out && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  lseek(log, 0, SEEK_SET);
  char buffer[4096];
  for (ssize_t n; (n = read(log, buffer, sizeof buffer)) > 0;) result.output.append(buffer, static_cast<size_t>(n));
  close(log);
  return result;
}

}  // namespace npu::test
