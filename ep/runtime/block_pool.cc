#include "ep/runtime/block_pool.h"

#include <algorithm>
#include <utility>

namespace npu {
namespace {

// A remainder below these is not split off: it would fit no request and only fragment the segment.
constexpr size_t kMinSmallRest = 512;
constexpr size_t kMinLargeRest = (size_t{1} << 20) + 1;

}  // namespace

BlockPool::~BlockPool() {
  for (auto& [raw, segment] : segments_)
    for (Block* b = segment->first; b != nullptr;) index_.Drop(std::exchange(b, b->next));
}

Block* BlockPool::Take(size_t size, bool small, uint64_t owner) {
  FreeList& list = small ? small_ : large_;
  if (Block* block = TakeFrom(list, size, owner, owner)) return block;
  return TakeFrom(list, size, kAnyStream, owner);
}

Block* BlockPool::TakeFrom(FreeList& list, size_t size, uint64_t list_owner, uint64_t new_owner) {
  const auto it = list.lower_bound(Fit{list_owner, size});
  if (it == list.end() || (*it)->owner != list_owner) return nullptr;
  Block* block = *it;
  // A block that must not be split serves only requests of about its own size.
  if (!block->segment->small && Oversize(block->size)) {
    const bool fits = Oversize(size) && block->size - size < settings_.max_non_split_rounding;
    if (!fits) return nullptr;
  }
  Remove(block);
  try {
    Cut(block, size);
  } catch (...) {
    Insert(block);
    throw;
  }
  block->owner = new_owner;
  block->state = Block::State::kLive;
  return block;
}

Block* BlockPool::TakeFromNewSegment(void* base, size_t bytes, size_t size, bool small, uint64_t owner) {
  auto made = std::make_unique<Segment>();
  made->base = base;
  made->bytes = bytes;
  made->small = small;
  made->stream = owner;
  made->pool = this;
  Segment* segment = made.get();
  segments_.emplace(segment, std::move(made));
  Block* block = nullptr;
  try {
    block = index_.Make(segment, static_cast<char*>(base), bytes, owner);
    Cut(block, size);
  } catch (...) {
    if (block != nullptr) index_.Drop(block);
    segments_.erase(segment);
    throw;
  }
  segment->first = block;
  Count(stats_.segment, small, 1);
  Count(stats_.reserved_bytes, small, static_cast<int64_t>(bytes));
  if (Oversize(bytes)) stats_.oversize_segments.Add(1);
  return block;
}

void BlockPool::Cut(Block* block, size_t size) {
  const size_t rest = block->size - size;
  const Segment& segment = *block->segment;
  if (rest < (segment.small || segment.address_space > 0 ? kMinSmallRest : kMinLargeRest)) return;
  if (!segment.small && Oversize(size)) return;
  Block* tail = index_.Make(block->segment, block->ptr + size, rest, block->owner, block);
  tail->prev = block;
  tail->next = block->next;
  if (tail->next != nullptr) tail->next->prev = tail;
  block->next = tail;
  block->size = size;
  Insert(tail);
}

Block* BlockPool::LastBlock(const Segment& segment) const {
  if (segment.first == nullptr) return nullptr;
  return index_.LastBelow(static_cast<char*>(segment.base) + segment.bytes);
}

Segment* BlockPool::AddExpandable(void* base, size_t address_space, bool small, uint64_t owner) {
  auto segment = std::make_unique<Segment>();
  segment->base = base;
  segment->address_space = address_space;
  segment->small = small;
  segment->stream = owner;
  segment->pool = this;
  Segment* raw = segment.get();
  segments_.emplace(raw, std::move(segment));
  Count(stats_.segment, small, 1);
  return raw;
}

Segment* BlockPool::FindExpandable(bool small, uint64_t owner) const {
  for (const auto& [raw, segment] : segments_)
    if (segment->address_space > 0 && segment->small == small && segment->stream == owner) return raw;
  return nullptr;
}

size_t BlockPool::FreeTail(const Segment& segment, uint64_t owner) const {
  const Block* last = LastBlock(segment);
  const bool joins =
      last != nullptr && last->state == Block::State::kFree && (last->owner == owner || last->owner == kAnyStream);
  return joins ? last->size : 0;
}

void BlockPool::Grow(Segment* segment, size_t bytes, uint64_t owner) {
  Block* last = LastBlock(*segment);
  Block* block = index_.Make(segment, static_cast<char*>(segment->base) + segment->bytes, bytes, owner);
  block->prev = last;
  (last == nullptr ? segment->first : last->next) = block;
  segment->bytes += bytes;
  Count(stats_.reserved_bytes, segment->small, static_cast<int64_t>(bytes));
  Put(block);
}

std::vector<BlockPool::Trimmed> BlockPool::TrimTails(size_t granule) {
  std::vector<Trimmed> out;
  out.reserve(segments_.size());
  for (auto& [raw, segment] : segments_) {
    Block* last = segment->address_space > 0 ? LastBlock(*segment) : nullptr;
    if (last == nullptr || last->state != Block::State::kFree || last->owner != kAnyStream) continue;
    const auto kept =
        static_cast<size_t>(last->ptr - static_cast<char*>(segment->base) + granule - 1) / granule * granule;
    if (kept >= segment->bytes) continue;
    const size_t cut = segment->bytes - kept;
    out.push_back({static_cast<char*>(segment->base) + kept, cut});
    segment->bytes = kept;
    Discount(stats_.reserved_bytes, segment->small, static_cast<int64_t>(cut));
    Remove(last);
    last->size -= cut;
    if (last->size > 0) {
      Insert(last);
    } else {
      (last->prev == nullptr ? segment->first : last->prev->next) = nullptr;
      index_.Drop(last);
    }
  }
  return out;
}

std::vector<std::unique_ptr<Segment>> BlockPool::RemoveUnmappedSegments() {
  std::vector<std::unique_ptr<Segment>> removed;
  removed.reserve(segments_.size());
  for (auto it = segments_.begin(); it != segments_.end();) {
    if (it->second->first != nullptr) {
      ++it;
      continue;
    }
    Discount(stats_.segment, it->second->small, 1);
    removed.push_back(std::move(it->second));
    it = segments_.erase(it);
  }
  return removed;
}

void BlockPool::Put(Block* block) {
  // Idle neighbours are merged into an owned block, never an owned one into an idle block: all of an idle block is
  // idle.
  const auto joins = [&](const Block* n) {
    return n != nullptr && n->state == Block::State::kFree && (n->owner == block->owner || n->owner == kAnyStream);
  };
  if (joins(block->prev)) Absorb(block, block->prev);
  if (joins(block->next)) Absorb(block, block->next);
  block->segment->last_freed = ++frees_;
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
  index_.Drop(neighbour);
}

void BlockPool::Insert(Block* block) {
  block->state = Block::State::kFree;
  block->requested = 0;
  block->frames.reset();
  block->counted_as_split = block->prev != nullptr || block->next != nullptr;
  if (block->counted_as_split) {
    Count(stats_.inactive_split, block->segment->small, 1);
    Count(stats_.inactive_split_bytes, block->segment->small, static_cast<int64_t>(block->size));
  }
  block->listed = ListOf(*block).insert(std::move(block->list_node)).position;
}

void BlockPool::Remove(Block* block) {
  block->list_node = ListOf(*block).extract(block->listed);
  if (block->counted_as_split) {
    Discount(stats_.inactive_split, block->segment->small, 1);
    Discount(stats_.inactive_split_bytes, block->segment->small, static_cast<int64_t>(block->size));
  }
}

std::vector<uint64_t> BlockPool::Owners() const {
  std::vector<uint64_t> owners;
  for (const FreeList* list : {&small_, &large_})
    for (auto it = list->lower_bound(Fit{kAnyStream + 1, 0}); it != list->end();
         it = list->lower_bound(Fit{owners.back() + 1, 0}))
      owners.push_back((*it)->owner);
  std::sort(owners.begin(), owners.end());
  owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
  return owners;
}

void BlockPool::Hold(Block* block) {
  Remove(block);
  block->state = Block::State::kHeld;
}

Block* BlockPool::Hold(uint64_t owner) {
  Block* held = nullptr;
  for (FreeList* list : {&small_, &large_})
    for (auto it = list->lower_bound(Fit{owner, 0}); it != list->end() && (*it)->owner == owner;) {
      Block* block = *it++;
      Hold(block);
      block->held_next = std::exchange(held, block);
    }
  return held;
}

void BlockPool::PutIdle(Block* held) {
  while (held != nullptr) {
    Block* block = std::exchange(held, std::exchange(held->held_next, nullptr));
    block->owner = kAnyStream;
    const uint64_t freed = block->segment->last_freed;  // it was free before: keep the order
    Put(block);
    block->segment->last_freed = freed;
  }
}

void BlockPool::Disown(const std::function<bool(uint64_t owner)>& gone) {
  Block* idle = nullptr;
  for (auto& [raw, segment] : segments_)
    for (Block* block = segment->first; block != nullptr; block = block->next) {
      if (block->owner == kAnyStream || !gone(block->owner)) continue;
      if (block->state == Block::State::kFree) {
        Hold(block);
        block->held_next = std::exchange(idle, block);
      } else {
        block->owner = kAnyStream;
      }
    }
  PutIdle(idle);
}

std::unique_ptr<Segment> BlockPool::RemoveSegmentOf(Block* block) {
  auto node = segments_.extract(block->segment);
  std::unique_ptr<Segment> segment = std::move(node.mapped());
  if (Oversize(segment->bytes)) stats_.oversize_segments.Sub(1);
  Discount(stats_.segment, segment->small, 1);
  Discount(stats_.reserved_bytes, segment->small, static_cast<int64_t>(segment->bytes));
  index_.Drop(block);
  return segment;
}

std::vector<std::unique_ptr<Segment>> BlockPool::RemoveIdleSegments(size_t enough) {
  std::vector<Block*> whole;
  for (FreeList* list : {&small_, &large_})
    for (Block* block : *list)
      if (block->owner == kAnyStream && block->size == block->segment->bytes && block->segment->address_space == 0)
        whole.push_back(block);
  std::sort(whole.begin(), whole.end(),
            [](const Block* a, const Block* b) { return a->segment->last_freed < b->segment->last_freed; });
  std::vector<std::unique_ptr<Segment>> removed;
  removed.reserve(whole.size());
  size_t bytes = 0;
  for (Block* block : whole) {
    if (bytes >= enough) break;
    bytes += block->size;
    Remove(block);
    removed.push_back(RemoveSegmentOf(block));
  }
  return removed;
}

}  // namespace npu
