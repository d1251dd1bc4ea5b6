#include "ep/runtime/block_pool.h"

#include <utility>

namespace npu {
namespace {

// A rest below these stays with its block: it would fit nothing, only cut the segment into crumbs.
constexpr size_t kMinSmallRest = 512;
constexpr size_t kMinLargeRest = (size_t{1} << 20) + 1;

}  // namespace

BlockPool::~BlockPool() {
  for (auto& [raw, segment] : segments_)
    for (Block* b = segment->first; b != nullptr;) delete std::exchange(b, b->next);
}

Block* BlockPool::Take(size_t size, bool small, uint64_t owner) {
  FreeList& list = small ? small_ : large_;
  if (Block* block = TakeFrom(list, size, owner, owner)) return block;
  return TakeFrom(list, size, kAnyStream, owner);
}

Block* BlockPool::TakeFrom(FreeList& list, size_t size, uint64_t list_owner, uint64_t new_owner) {
  Block wanted;
  wanted.owner = list_owner;
  wanted.size = size;
  const auto it = list.lower_bound(&wanted);
  if (it == list.end() || (*it)->owner != list_owner) return nullptr;
  Block* block = *it;
  Remove(block);
  Cut(block, size);
  block->owner = new_owner;
  block->state = Block::State::kLive;
  return block;
}

Block* BlockPool::TakeFromNewSegment(void* base, size_t bytes, size_t size, bool small, uint64_t owner) {
  auto segment = std::make_unique<Segment>();
  auto block = std::make_unique<Block>();
  segment->base = base;
  segment->bytes = bytes;
  segment->small = small;
  segment->first = block.get();
  block->ptr = static_cast<char*>(base);
  block->size = bytes;
  block->owner = owner;
  block->segment = segment.get();
  segments_.emplace(segment.get(), std::move(segment));
  Count(stats_.segment, small, 1);
  Count(stats_.reserved_bytes, small, static_cast<int64_t>(bytes));
  Cut(block.get(), size);
  return block.release();
}

void BlockPool::Cut(Block* block, size_t size) {
  const size_t rest = block->size - size;
  if (rest < (block->segment->small ? kMinSmallRest : kMinLargeRest)) return;
  auto* tail = new Block;
  tail->ptr = block->ptr + size;
  tail->size = rest;
  tail->owner = block->owner;
  tail->segment = block->segment;
  tail->prev = block;
  tail->next = block->next;
  if (tail->next != nullptr) tail->next->prev = tail;
  block->next = tail;
  block->size = size;
  Insert(tail);
}

void BlockPool::Put(Block* block) {
  // Idle neighbours join an owned block, never the other way round: idle memory is idle as a whole.
  const auto joins = [&](const Block* n) {
    return n != nullptr && n->state == Block::State::kFree && (n->owner == block->owner || n->owner == kAnyStream);
  };
  if (joins(block->prev)) Absorb(block, block->prev);
  if (joins(block->next)) Absorb(block, block->next);
  Insert(block);
}

void BlockPool::Absorb(Block* block, Block* neighbour) {
  Remove(neighbour);
  if (neighbour == block->prev) {
    block->ptr = neighbour->ptr;
    block->prev = neighbour->prev;
    if (block->prev != nullptr) block->prev->next = block;
    if (block->segment->first == neighbour) block->segment->first = block;
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) block->next->prev = block;
  }
  block->size += neighbour->size;
  delete neighbour;
}

void BlockPool::Insert(Block* block) {
  block->state = Block::State::kFree;
  block->counted_as_split = block->prev != nullptr || block->next != nullptr;
  if (block->counted_as_split) {
    Count(stats_.inactive_split, block->segment->small, 1);
    Count(stats_.inactive_split_bytes, block->segment->small, static_cast<int64_t>(block->size));
  }
  ListOf(*block).insert(block);
}

void BlockPool::Remove(Block* block) {
  ListOf(*block).erase(block);
  if (block->counted_as_split) {
    Discount(stats_.inactive_split, block->segment->small, 1);
    Discount(stats_.inactive_split_bytes, block->segment->small, static_cast<int64_t>(block->size));
  }
}

std::vector<Block*> BlockPool::HoldOwned() {
  std::vector<Block*> held;
  for (FreeList* list : {&small_, &large_})
    for (Block* block : *list)
      if (block->owner != kAnyStream) held.push_back(block);
  for (Block* block : held) {
    Remove(block);
    block->state = Block::State::kHeld;
  }
  return held;
}

void BlockPool::PutIdle(const std::vector<Block*>& held) {
  for (Block* block : held) {
    block->owner = kAnyStream;
    Put(block);
  }
}

void BlockPool::Disown(uint64_t owner) {
  std::vector<Block*> idle;
  for (auto& [raw, segment] : segments_)
    for (Block* block = segment->first; block != nullptr; block = block->next) {
      if (block->owner != owner) continue;
      if (block->state == Block::State::kFree) {
        idle.push_back(block);
      } else {
        block->owner = kAnyStream;
      }
    }
  for (Block* block : idle) {  // free blocks of one owner are never neighbours, so none absorbs another here
    Remove(block);
    block->owner = kAnyStream;
    Put(block);
  }
}

std::vector<std::unique_ptr<Segment>> BlockPool::RemoveIdleSegments() {
  std::vector<Block*> whole;
  for (FreeList* list : {&small_, &large_})
    for (Block* block : *list)
      if (block->owner == kAnyStream && block->prev == nullptr && block->next == nullptr) whole.push_back(block);
  std::vector<std::unique_ptr<Segment>> removed;
  for (Block* block : whole) {
    Remove(block);
    auto node = segments_.extract(block->segment);
    Discount(stats_.segment, node.mapped()->small, 1);
    Discount(stats_.reserved_bytes, node.mapped()->small, static_cast<int64_t>(node.mapped()->bytes));
    removed.push_back(std::move(node.mapped()));
    delete block;
  }
  return removed;
}

}  // namespace npu
