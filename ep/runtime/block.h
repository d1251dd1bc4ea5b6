// A block of a segment, and the index of all blocks by their addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

#include "ep/runtime/allocator_snapshot.h"

namespace npu {

struct Block;
struct Segment;
struct StreamUse;

// A search key for lists of free blocks.
struct Fit {
  uint64_t owner;
  size_t size;
};
struct BestFit {  // by owner, then best fit, then address
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const;
  bool operator()(const Block* a, const Fit& b) const;
  bool operator()(const Fit& a, const Block* b) const;
};
struct ByAddress {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const;
  bool operator()(const Block* a, const void* b) const;
  bool operator()(const void* a, const Block* b) const;
};
using FreeList = std::set<Block*, BestFit>;
using BlocksByAddress = std::set<Block*, ByAddress>;

struct Block {
  // kPending: freed, while a stream may still use it. kHeld: free, but taken out of the lists while its stream is
  // being waited for.
  enum class State { kLive, kPending, kHeld, kFree };

  char* ptr = nullptr;
  size_t size = 0;
  size_t requested = 0;  // bytes that the caller requested
  uint64_t owner = 0;    // stream that last used it; 0: no queued work touches it
  State state = State::kLive;
  bool counted_as_split = false;
  Frames frames;  // where it was allocated, while a history is recorded
  Segment* segment = nullptr;
  Block* prev = nullptr;  // neighbours within the segment
  Block* next = nullptr;
  StreamUse* uses = nullptr;  // by the streams that a free must wait for
  int pending_uses = 0;       // since the free
  Block* held_next = nullptr;
  // Its nodes in the index and in a list of free blocks are allocated with it, so that freeing a block needs no memory.
  BlocksByAddress::node_type index_node;  // while it is not in the index
  BlocksByAddress::iterator indexed;      // while it is
  FreeList::node_type list_node;
  FreeList::iterator listed;
};

// All blocks of an allocator, in any pool and state. Also creates blocks, and recycles dropped ones.
class BlockIndex {
 public:
  BlockIndex() = default;
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // `before` is the block that the new one was split from, if any.
  Block* Make(Segment* segment, char* ptr, size_t size, uint64_t owner, const Block* before = nullptr);
  void Drop(Block* block);

  Block* At(const void* ptr) const;             // the block that starts there; null: none does
  Block* Around(const void* address) const;     // that holds the address
  Block* LastBelow(const void* address) const;  // with the highest start below it
  auto begin() const { return blocks_.begin(); }
  auto end() const { return blocks_.end(); }

 private:
  BlocksByAddress blocks_;
  Block* spare_ = nullptr;  // a chain by `next`
  size_t spares_ = 0;
};

}  // namespace npu
