// One constant matrix for the kernels of several nodes. Each could keep a packed copy of its own; if the packed layout
// takes the same bytes, the matrix itself is packed in place and every kernel reads it. A separate interface, since few
// kernels implement it.
#pragma once

#include <cstddef>

#include "ep/runtime/stream.h"
#include "ep/runtime/tensor.h"

namespace npu {

class SharedMatrixReader {
 public:
  // Support for the matrix unit's panel layout: kNo, the kernel reads rows only; kEither, it reads both; kWanted, it
  // would otherwise keep a packed copy. Must depend on dtype and shape only.
  enum class Panels { kNo, kEither, kWanted };
  virtual Panels PanelsOf(size_t input, const TensorView& constant) const = 0;
  // From now on, the input holds panels. Called on every reader before the first Compute; with `reorder`, the reader
  // packs the matrix in place and returns when this is done.
  virtual void UsePanels(size_t input, const TensorView& constant, bool reorder, Stream& stream) = 0;

 protected:
  ~SharedMatrixReader() = default;
};

}  // namespace npu
