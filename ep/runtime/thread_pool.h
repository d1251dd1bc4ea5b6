// The intra-op pool that launched kernels share.
#pragma once

#include <cstdint>

namespace npu {

// A non-owning reference to a callable `void(int64_t begin, int64_t end)`.
class RangeFunction {
 public:
  template <class F>
  RangeFunction(const F& f)  // NOLINT: implicit by design
      : object_(&f), call_([](const void* o, int64_t b, int64_t e) { (*static_cast<const F*>(o))(b, e); }) {}
  void operator()(int64_t begin, int64_t end) const { call_(object_, begin, end); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int64_t);
};

// Splits [0, n) into ranges of at least `grain` and runs them on the pool, the caller included. Returns when all are
// done; rethrows the first exception. Concurrent kernels share the threads. A nested call runs on its own thread. The
// ranges depend on n, grain and NumThreads() only, never on other work.
void ParallelFor(int64_t n, int64_t grain, RangeFunction f);

// The kernels that this thread starts from now on belong to a logical device (0 until then): devices that work
// concurrently share the threads evenly, regardless of how many kernels each runs.
void SetPoolDevice(int device);

// Lets a thread that only waits for kernels work for the pool meanwhile, in place of a sleeping worker: waking one
// takes longer than many kernels do. Results do not depend on it: it takes ranges as a worker would.
class PoolHelper {
 public:
  PoolHelper();
  ~PoolHelper();
  PoolHelper(const PoolHelper&) = delete;
  PoolHelper& operator=(const PoolHelper&) = delete;
  // False when every worker is awake or kernels keep all cores busy, so that no core is free for this thread.
  bool enrolled() const { return enrolled_; }
  // Runs a range of a kernel in progress; false when there was none to claim.
  bool Help();

 private:
  bool enrolled_;
};

// Threads that ParallelFor may use, the caller included (ORT_NPU_NUM_THREADS; default: usable cores).
int NumThreads();

}  // namespace npu
