// Memory that somebody else owns, given to an allocation instead of memory of the pool. An OrtValue can only be made
// with memory that its provider's allocator handed out; so it comes to share a tensor's memory, and to keep it.
#pragma once

#include <cstddef>
#include <memory>

namespace npu {

class LentMemory {
 public:
  // The next Take() on this thread and device, of at most `bytes`, gets `address`, and `owner` is kept until Return().
  static void Offer(int device, void* address, size_t bytes, std::shared_ptr<void> owner);
  static bool Withdraw();                       // what this thread offered; false: it was taken
  static void* Take(int device, size_t bytes);  // null: nothing is offered
  // The owner, for the caller to release; null: the address was not lent. Whoever owns the memory itself returns it
  // after all who borrowed it from them.
  static std::shared_ptr<void> Return(void* address);
};

}  // namespace npu
