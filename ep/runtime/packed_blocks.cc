#include "ep/runtime/packed_blocks.h"

#include <utility>

namespace npu {
namespace {

thread_local PackedBlocks* current = nullptr;

}  // namespace

PackedBlocks* CurrentPackedBlocks() { return current; }

PackedBlocksScope::PackedBlocksScope(PackedBlocks* blocks) : before_(std::exchange(current, blocks)) {}
PackedBlocksScope::~PackedBlocksScope() { current = before_; }

}  // namespace npu
