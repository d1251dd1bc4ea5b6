#include "python/csrc/stream_pool.h"

#include <map>
#include <mutex>
#include <vector>

namespace npu::python {
namespace {

struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<std::unique_ptr<Stream>>> idle;
};

// Never destroyed: at exit the runtime may be unloaded before this library's statics are destroyed.
Pool& GetPool() {
  static Pool* pool = new Pool;
  return *pool;
}

}  // namespace

StreamLease::StreamLease(Device& device) : device_(device) {
  Pool& pool = GetPool();
  {
    std::lock_guard lock(pool.mutex);
    auto& idle = pool.idle[device.index()];
    if (!idle.empty()) {
      stream_ = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (!stream_) stream_ = device.CreateStream(0, StreamOwner::kOne);
}

StreamLease::~StreamLease() {
  Pool& pool = GetPool();
  std::lock_guard lock(pool.mutex);
  pool.idle[device_.index()].push_back(std::move(stream_));
}

}  // namespace npu::python
