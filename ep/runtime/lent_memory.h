// Memory with an external owner, which an allocation returns instead of memory of the pool. An OrtValue can only be
// created with memory from its provider's allocator; lending lets it share a tensor's memory and keep it alive.
#pragma once

#include <cstddef>
#include <memory>

namespace npu {

class LentMemory {
 public:
  // The next Take() on this thread and device, of at most `bytes`, returns `address`; `owner` is kept until Return().
  static void Offer(int device, void* address, size_t bytes, std::shared_ptr<void> owner);
  static bool Withdraw();                       // this thread's offer; false: it was taken
  static void* Take(int device, size_t bytes);  // null: nothing is offered
  // The owner, for the caller to release; null: the address was not lent. When the memory's own allocator frees it, all
  // borrowers have returned it.
  static std::shared_ptr<void> Return(void* address);
};

}  // namespace npu
