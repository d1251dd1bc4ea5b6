// Sums over ranks. Each is taken in the order of ranks, in float32, and rounded once, so that it is the same on every
// rank, over whatever the data travels, and however it is cut into pieces.
#pragma once

#include <cstdint>

#include "ep/runtime/communicator.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// Each of the following takes `scratch`, of as many bytes as its function below says for this or a larger call: fresh
// memory would be mapped and cleared by the system each time.

// Replaces `data` of every rank by the sum.
void AllReduce(Communicator& group, const char* op, DType dtype, void* data, int64_t count, void* scratch);
size_t AllReduceScratch(DType dtype, int64_t count, int64_t ranks);

// What travels instead of `rows` rows of halves: int8, with a scale for each of the n columns. `terms` is how a rank's
// terms are sent, `sums` how their sum is.
struct TransferScales {
  const float *terms = nullptr, *sums = nullptr;
};

// AllReduce with transfers of int8: every term is round(term / terms), and the sum of these integers times `terms` is
// sent on as round(sum / sums), all saturated.
void AllReduceInt8(Communicator& group, const char* op, DType dtype, void* data, int64_t rows, int64_t n,
                   const TransferScales& scales, void* scratch);
size_t AllReduceInt8Scratch(int64_t rows, int64_t n, int64_t ranks);

// `parts` has `count` elements for each rank; `to` becomes the sum of those for this rank.
void ReduceScatter(Communicator& group, const char* op, DType dtype, const void* parts, void* to, int64_t count,
                   void* scratch);
size_t ReduceScatterScratch(DType dtype, int64_t count, int64_t ranks);

}  // namespace npu
