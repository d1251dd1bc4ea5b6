// The live streams of a device.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "ep/runtime/device.h"

namespace npu {

// A stream in use by Visit() is not destroyed: Remove() waits for it, and nothing is locked meanwhile, so
// tasks may make streams.
struct Device::StreamSet {
  void Add(Stream* stream) {
    std::lock_guard lock(mutex);
    streams.push_back({stream, 0});
  }
  void Remove(Stream* stream) {
    std::unique_lock lock(mutex);
    unpinned.wait(lock, [&] { return Find(stream)->pins == 0; });
    streams.erase(Find(stream));
  }
  template <class F>
  Stream* FindIf(F&& f) {
    std::lock_guard lock(mutex);
    for (const Entry& e : streams)
      if (f(*e.stream)) return e.stream;
    return nullptr;
  }
  template <class F>
  void Visit(F&& f) {
    std::vector<Stream*> pinned;
    {
      std::lock_guard lock(mutex);
      for (Entry& e : streams) {
        ++e.pins;
        pinned.push_back(e.stream);
      }
    }
    for (Stream* stream : pinned) {
      f(*stream);
      std::lock_guard lock(mutex);
      --Find(stream)->pins;
      unpinned.notify_all();
    }
  }

 private:
  struct Entry {
    Stream* stream;
    int pins;
  };
  std::vector<Entry>::iterator Find(Stream* stream) {
    return std::find_if(streams.begin(), streams.end(), [&](const Entry& e) { return e.stream == stream; });
  }
  std::mutex mutex;
  std::condition_variable unpinned;
  std::vector<Entry> streams;
};

}  // namespace npu
