#include "ep/runtime/current.h"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"

namespace npu {
namespace {

thread_local int current_device = 0;
thread_local std::array<Stream*, kMaxDevices> current_streams{};

// A fixed number of streams, handed out in turn. Never destroyed: see Runtime::Instance.
class StreamRound {
 public:
  template <class Make>
  Stream& Next(size_t count, Make&& make) {
    if (streams_.size() < count) {
      streams_.push_back(make());
      return *streams_.back();
    }
    return *streams_[next_++ % count];
  }

 private:
  std::vector<std::unique_ptr<Stream>> streams_;
  size_t next_ = 0;
};

std::mutex& RoundsMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

}  // namespace

int CurrentDevice() { return current_device; }

void SetCurrentDevice(int index) { current_device = Runtime::Instance().device(index).index(); }

Stream& CurrentStream(int device) {
  Device& chosen = Runtime::Instance().device(device);
  Stream* stream = current_streams[static_cast<size_t>(device)];
  return stream != nullptr ? *stream : chosen.default_stream();
}

uint64_t ThisThreadNumber() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

std::string CallerStream(int device) { return Concat(CurrentStream(device).id(), ' ', ThisThreadNumber()); }

void SetCurrentStream(Stream& stream) { current_streams[static_cast<size_t>(stream.device().index())] = &stream; }

Stream& PooledStream(int device, int priority) {
  static auto& rounds = *new std::map<std::pair<int, int>, StreamRound>;
  Device& owner = Runtime::Instance().device(device);
  std::lock_guard lock(RoundsMutex());
  return rounds[{device, priority}].Next(kStreamsPerPool, [&] { return owner.CreateStream(priority); });
}

Stream& PooledSyncLaunchStream(int device) {
  static auto& rounds = *new std::map<int, StreamRound>;
  Device& owner = Runtime::Instance().device(device);
  std::lock_guard lock(RoundsMutex());
  return rounds[device].Next(kSyncLaunchStreamsPerPool, [&] {
    auto stream = owner.CreateStream();
    BackendExtensions::Of(owner.backend()).MakeBlocking(stream->handle());
    return stream;
  });
}

}  // namespace npu
