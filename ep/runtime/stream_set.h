// The live streams of a device.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "ep/runtime/device.h"

namespace npu {

struct Device::StreamSet {
  void Add(Stream* stream) {
    std::lock_guard lock(mutex);
    streams.push_back(stream);
  }
  void Remove(Stream* stream) {
    std::lock_guard lock(mutex);
    std::erase(streams, stream);
  }
  template <class F>
  Stream* FindIf(F&& f) {
    std::lock_guard lock(mutex);
    const auto found = std::find_if(streams.begin(), streams.end(), [&](Stream* s) { return f(*s); });
    return found == streams.end() ? nullptr : *found;
  }
  // Streams are not destroyed meanwhile, so `f` must not wait, nor make streams or let them go.
  template <class F>
  void Visit(F&& f) {
    std::lock_guard lock(mutex);
    for (Stream* stream : streams) f(*stream);
  }

 private:
  std::mutex mutex;
  std::vector<Stream*> streams;
};

}  // namespace npu
