// Where kernels take packed constants from, and where they show those that they packed themselves, while a session
// loads or stores a compiled model (docs/decisions/0035). An interface beside Kernel::PrePack, so that kernels do not
// know about files: whoever packs asks here first.
#pragma once

#include <cstddef>
#include <memory>

namespace npu {

class PackedBlocks {
 public:
  virtual ~PackedBlocks() = default;
  // The next block, if it has `bytes`: on 64-byte boundaries, in memory that kernels read and that stays as long as the
  // result does. Null: there is none, and the caller packs.
  virtual std::shared_ptr<const void> Take(size_t bytes) = 0;
  // What the caller packed, in host memory; only until this returns.
  virtual void Packed(const void* data, size_t bytes) = 0;
};

// Those of the calling thread; null while it neither loads nor stores a compiled model.
PackedBlocks* CurrentPackedBlocks();

// Makes `blocks`, which may be null, those of this thread.
class PackedBlocksScope {
 public:
  explicit PackedBlocksScope(PackedBlocks* blocks);
  ~PackedBlocksScope();
  PackedBlocksScope(const PackedBlocksScope&) = delete;
  PackedBlocksScope& operator=(const PackedBlocksScope&) = delete;

 private:
  PackedBlocks* const before_;
};

}  // namespace npu
