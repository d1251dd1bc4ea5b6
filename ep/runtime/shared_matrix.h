// One constant matrix for the kernels of several nodes. Each could keep a packed copy of its own; where the packed
// order takes the same bytes, the matrix itself is brought into it and every kernel reads that. A separate interface,
// since few kernels have it.
#pragma once

#include <cstddef>

#include "ep/runtime/stream.h"
#include "ep/runtime/tensor.h"

namespace npu {

class SharedMatrixReader {
 public:
  // Of the matrix unit's panel order: kNo, the kernel reads rows only; kEither, it reads both; kWanted, it would
  // otherwise keep a packed copy. The answer may depend on type and shape only.
  enum class Panels { kNo, kEither, kWanted };
  virtual Panels PanelsOf(size_t input, const TensorView& constant) const = 0;
  // From now on that input holds panels. Every reader is told, before the first Compute; the one that is told to
  // brings them into that order in place, and returns when this is done.
  virtual void UsePanels(size_t input, const TensorView& constant, bool reorder, Stream& stream) = 0;

 protected:
  ~SharedMatrixReader() = default;
};

}  // namespace npu
