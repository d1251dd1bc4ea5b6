// Waits that may be long, and locks of the host program that must not be held meanwhile.
#pragma once

namespace npu {

// While it lives, this thread may wait for the device: a front end's own lock (Python's GIL) is let go, since what is
// waited for may need it. It stands outside of every lock of the runtime: the front end's lock is taken back at its
// end.
class MayBlock {
 public:
  MayBlock();
  ~MayBlock();
  MayBlock(const MayBlock&) = delete;
  MayBlock& operator=(const MayBlock&) = delete;

  // `release` lets go of the lock if this thread holds it, and returns what `restore` needs to take it back; null:
  // it was not held.
  static void SetHooks(void* (*release)(), void (*restore)(void*));

 private:
  void* released_;
};

}  // namespace npu
