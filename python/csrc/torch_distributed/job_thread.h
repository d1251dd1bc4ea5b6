// A thread that runs jobs in the order in which they were given. It begins with the first job.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace npu::distributed {

class JobThread {
 public:
  explicit JobThread(std::string name) : name_(std::move(name)) {}
  ~JobThread();  // after the last job
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  void Add(std::function<void()> job);  // a job that throws nothing

 private:
  void Run();

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace npu::distributed
