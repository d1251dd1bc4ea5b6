#include "ep/runtime/block.h"

#include <iterator>
#include <memory>
#include <utility>

namespace npu {
namespace {

// Block objects are recycled, because splits and merges are frequent; this bounds what a burst leaves behind.
constexpr size_t kMaxSpares = 4096;

}  // namespace

bool BestFit::operator()(const Block* a, const Block* b) const {
  if (a->owner != b->owner) return a->owner < b->owner;
  if (a->size != b->size) return a->size < b->size;
  return a->ptr < b->ptr;
}
bool BestFit::operator()(const Block* a, const Fit& b) const {
  return a->owner != b.owner ? a->owner < b.owner : a->size < b.size;
}
bool BestFit::operator()(const Fit& a, const Block* b) const {
  return a.owner != b->owner ? a.owner < b->owner : a.size < b->size;
}

bool ByAddress::operator()(const Block* a, const Block* b) const { return a->ptr < b->ptr; }
bool ByAddress::operator()(const Block* a, const void* b) const { return a->ptr < b; }
bool ByAddress::operator()(const void* a, const Block* b) const { return a < b->ptr; }

BlockIndex::~BlockIndex() {
  while (spare_ != nullptr) delete std::exchange(spare_, spare_->next);
}

Block* BlockIndex::Make(Segment* segment, char* ptr, size_t size, uint64_t owner, const Block* before) {
  if (spare_ == nullptr) {
    auto made = std::make_unique<Block>();
    FreeList list;
    made->list_node = list.extract(list.insert(made.get()).first);
    BlocksByAddress index;
    made->index_node = index.extract(index.insert(made.get()).first);
    spare_ = made.release();
    ++spares_;
  }
  Block* block = std::exchange(spare_, spare_->next);
  --spares_;
  block->ptr = ptr;
  block->size = size;
  block->requested = 0;
  block->owner = owner;
  block->state = Block::State::kLive;
  block->segment = segment;
  block->prev = block->next = nullptr;
  const auto place = before == nullptr ? blocks_.lower_bound(ptr) : std::next(before->indexed);
  block->indexed = blocks_.insert(place, std::move(block->index_node));
  return block;
}

void BlockIndex::Drop(Block* block) {
  block->index_node = blocks_.extract(block->indexed);
  if (spares_ >= kMaxSpares || block->list_node.empty()) {
    delete block;
    return;
  }
  block->frames.reset();
  block->next = std::exchange(spare_, block);
  ++spares_;
}

Block* BlockIndex::At(const void* ptr) const {
  const auto it = blocks_.find(ptr);
  return it == blocks_.end() ? nullptr : *it;
}

Block* BlockIndex::LastBelow(const void* address) const {
  const auto it = blocks_.lower_bound(address);
  return it == blocks_.begin() ? nullptr : *std::prev(it);
}

Block* BlockIndex::Around(const void* address) const {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  Block* block = *std::prev(after);
  return static_cast<size_t>(static_cast<const char*>(address) - block->ptr) < block->size ? block : nullptr;
}

}  // namespace npu
