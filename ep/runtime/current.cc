#include "ep/runtime/current.h"

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ep/runtime/environment.h"

namespace npu {
namespace {

thread_local int current_device = 0;
thread_local std::array<Stream*, kMaxDevices> current_streams{};

struct StreamRound {
  std::vector<std::unique_ptr<Stream>> streams;
  size_t next = 0;
};

}  // namespace

int CurrentDevice() { return current_device; }

void SetCurrentDevice(int index) { current_device = Runtime::Instance().device(index).index(); }

Stream& CurrentStream(int device) {
  Device& chosen = Runtime::Instance().device(device);
  Stream* stream = current_streams[static_cast<size_t>(device)];
  return stream != nullptr ? *stream : chosen.default_stream();
}

void SetCurrentStream(Stream& stream) { current_streams[static_cast<size_t>(stream.device().index())] = &stream; }

Stream& PooledStream(int device, int priority) {
  static std::mutex& mutex = *new std::mutex;
  static auto& rounds = *new std::map<std::pair<int, int>, StreamRound>;  // never destroyed: see Runtime::Instance
  Device& owner = Runtime::Instance().device(device);
  std::lock_guard lock(mutex);
  StreamRound& round = rounds[{device, priority}];
  if (round.streams.size() < kStreamsPerPool) {
    round.streams.push_back(owner.CreateStream(priority));
    return *round.streams.back();
  }
  return *round.streams[round.next++ % kStreamsPerPool];
}

}  // namespace npu
