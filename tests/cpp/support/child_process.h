// Runs one test case of this executable in a separate process, with environment variables set: for settings that are
// read once per process, and to check how a process ends.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>

namespace npu::test {

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
  const std::string filter = "--test-case=" + test_case;
  const pid_t pid = fork();
  if (pid == 0) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execl("/proc/self/exe", "npu_tests", filter.c_str(), "--no-skip", static_cast<char*>(nullptr));
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
