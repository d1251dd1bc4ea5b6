// Pages of device memory that host code must not touch: inaccessible, except while the device works.
#pragma once

#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace npu {

// From the first instance on, a fault on such a page is reported on stderr before the program's own handler, or the
// default action, runs: "[device memory] host code touched device address 0x… of an allocation of N bytes".
class DevicePages {
 public:
  DevicePages();
  ~DevicePages();
  DevicePages(const DevicePages&) = delete;
  DevicePages& operator=(const DevicePages&) = delete;

  // Whole pages. False when the system cannot protect them.
  bool Add(void* ptr, size_t bytes);
  // To be called before pages are freed: for part of an added range, or for several.
  void Remove(void* ptr, size_t bytes);

  // The pages are accessible to all threads while any work holds an Access.
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
  int work_ = 0;  // number of Access objects
  std::map<uintptr_t, size_t> ranges_;
};

}  // namespace npu
