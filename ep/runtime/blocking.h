// Long waits, during which locks of the host program must be released.
#pragma once

namespace npu {

// While in scope, this thread may wait for the device: a front end's own lock (Python's GIL) is released, since the
// awaited work may need it. To be used outside every lock of the runtime, because the destructor reacquires the front
// end's lock.
class MayBlock {
 public:
  MayBlock();
  ~MayBlock();
  MayBlock(const MayBlock&) = delete;
  MayBlock& operator=(const MayBlock&) = delete;

  // `release` releases the lock if this thread holds it, and returns what `restore` needs to reacquire it; null: it was
  // not held.
  static void SetHooks(void* (*release)(), void (*restore)(void*));

 private:
  void* released_;
};

}  // namespace npu
