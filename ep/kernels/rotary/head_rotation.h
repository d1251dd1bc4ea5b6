// Rotary position embedding of single heads, by tables with a row for each token.
#pragma once

#include <cstdint>

#include "ep/kernels/float_vector.h"
#include "ep/kernels/rotary/rotate_row.h"
#include "ep/kernels/row_block.h"

namespace npu {

// Cosines or sines of [batch, 1, tokens, size] or [batch, tokens, 1, size], of which batch and tokens may be 1.
struct TokenTable {
  TensorView view;
  int64_t batch_stride, token_stride;

  TokenTable(const TensorView& table, int token_axis)
      : view(table),
        batch_stride(table.shape[0] == 1 ? 0 : table.shape.Elements(1, 4)),
        token_stride(table.shape[token_axis] == 1 ? 0 : table.shape[3]) {}

  void Load(const char* op, int64_t batch, int64_t token, float* row) const {
    DispatchFloats(op, view.dtype, [&](auto tag) {
      ToFloat(view.as<const decltype(tag)>() + batch * batch_stride + token * token_stride, row, view.shape[3]);
    });
  }
};

// Rotates heads of `size` elements, which is even, with the cosines and sines of one token at a time.
template <class T>
class HeadRotation {
 public:
  HeadRotation(const char* op, const TokenTable& cosines, const TokenTable& sines, int64_t size, bool interleaved)
      : op_(op),
        cosines_(cosines),
        sines_(sines),
        size_(size),
        interleaved_(interleaved),
        cos_(size),
        sin_(size),
        wide_(size) {}

  void SetToken(int64_t batch, int64_t token) {
    cosines_.Load(op_, batch, token, cos_.values());
    sines_.Load(op_, batch, token, sin_.values());
  }

  void Rotate(const T* x, T* y) {
    const float *cos = cos_.values(), *sin = sin_.values();
    const int64_t half = size_ / 2;
    if (interleaved_ || half % simd::kLanes != 0) {
      float* wide = wide_.values();
      ToFloat(x, wide, size_);
      if (interleaved_) {
        RotateRow<Pairing::kNeighbours, Pairing::kNeighbours>(wide, cos, sin, wide, size_);
      } else {
        RotateRow<Pairing::kHalves, Pairing::kHalves>(wide, cos, sin, wide, size_);
      }
      FromFloat(wide, y, size_);
      return;
    }
    using namespace simd;
    for (int64_t i = 0; i < half; i += kLanes) {
      const Vec a = LoadFloats(x + i), b = LoadFloats(x + half + i);
      StoreRounded(Rounded<T>(a * Load(cos + i) - b * Load(sin + i)), y + i);
      StoreRounded(Rounded<T>(b * Load(cos + half + i) + a * Load(sin + half + i)), y + half + i);
    }
  }

 private:
  const char* op_;
  const TokenTable &cosines_, &sines_;
  int64_t size_;
  bool interleaved_;
  RowScratch cos_, sin_, wide_;
};

}  // namespace npu
