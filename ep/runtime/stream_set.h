// The streams of a device: live ones, and those that were released with work still queued.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "ep/runtime/device.h"

namespace npu {

struct Device::StreamSet {
  void Add(Stream* stream) {
    std::lock_guard lock(mutex);
    leaving.reserve(leaving.size() + streams.size() + 1);  // so that Leave() cannot fail
    streams.push_back(stream);
  }
  void Leave(Stream* stream) noexcept {
    std::lock_guard lock(mutex);
    std::erase(streams, stream);
    leaving.push_back(stream->handle());
  }
  // To be called before the stream's handle is destroyed.
  void Forget(BackendStream* stream) {
    std::lock_guard lock(mutex);
    std::erase(leaving, stream);
  }
  template <class F>
  Stream* FindIf(F&& f) {
    std::lock_guard lock(mutex);
    const auto found = std::find_if(streams.begin(), streams.end(), [&](Stream* s) { return f(*s); });
    return found == streams.end() ? nullptr : *found;
  }
  // Streams are not destroyed meanwhile, so `f` must neither wait nor create or release streams.
  template <class F>
  void Visit(F&& f) {
    std::lock_guard lock(mutex);
    for (Stream* stream : streams) f(*stream);
  }
  template <class F>
  void VisitLeaving(F&& f) {
    std::lock_guard lock(mutex);
    for (BackendStream* stream : leaving) f(stream);
  }

 private:
  std::mutex mutex;
  std::vector<Stream*> streams;
  std::vector<BackendStream*> leaving;
};

}  // namespace npu
