// Pages of device memory that host code may not touch: closed, except while the device works.
#pragma once

#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace npu {

// From the first of them on, a fault on such a page says so on stderr before the program's own handler, or the default
// action, gets it: "[device memory] host code touched device address 0x… of an allocation of N bytes".
class DevicePages {
 public:
  DevicePages();
  ~DevicePages();
  DevicePages(const DevicePages&) = delete;
  DevicePages& operator=(const DevicePages&) = delete;

  // Whole pages. False when the system cannot protect them.
  bool Add(void* ptr, size_t bytes);
  // Before they are given back: a part of what was added, or several parts.
  void Remove(void* ptr, size_t bytes);

  // The pages of all threads are open while any work holds an Access.
  class Access {
   public:
    explicit Access(DevicePages& pages) : pages_(pages) { pages_.Open(); }
    ~Access() { pages_.Close(); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    DevicePages& pages_;
  };

 private:
  static void OnFault(int signal, siginfo_t* info, void* context);
  void Open();
  void Close();
  void Protect(int protection);

  std::mutex mutex_;
  int work_ = 0;  // that runs now
  std::map<uintptr_t, size_t> ranges_;
};

}  // namespace npu
