// Rows in the order of their experts: a stable sort by a small number, on all threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu {

// Bytes of scratch that ordering so many rows takes.
size_t OrderScratchBytes(int64_t rows);

// order[i] = the row at place i, sorted by key; rows of equal keys stay as they come. Every key is at most `largest`.
void OrderRows(const uint32_t* keys, int64_t rows, uint32_t largest, int32_t* order, void* scratch);

// keys[i] = experts[i] less the least expert; returns the greatest key. Any experts, 0 for no rows.
uint32_t KeysOfExperts(const int32_t* experts, int64_t rows, uint32_t* keys);

}  // namespace npu
