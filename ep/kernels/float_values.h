// Floats of any width as float32, for kernels that read a value many times or write it in parts.
#pragma once

#include "ep/kernels/convert.h"

namespace npu {

inline constexpr int64_t kConversionGrain = 64 * 1024;  // elements that are worth another thread

// The float32 values of a view, or room for them. Made before the launch.
inline float* FloatRoom(OpContext& ctx, const TensorView& view) {
  const int64_t n = view.elements();
  if (view.dtype == DType::kFloat32 || n == 0) return view.as<float>();
  return static_cast<float*>(ctx.Workspace(BytesFor(DType::kFloat32, n)));
}

// An input.
class FloatValues {
 public:
  FloatValues(OpContext& ctx, const TensorView& view) : view_(view), values_(FloatRoom(ctx, view)) {}

  // In the launch: the values.
  const float* Load(const char* op) const {
    if (view_.dtype == DType::kFloat32) return values_;
    DispatchFloats(op, view_.dtype, [&](auto tag) {
      const auto* from = view_.as<const decltype(tag)>();
      ParallelFor(view_.elements(), kConversionGrain,
                  [&](int64_t begin, int64_t end) { ToFloat(from + begin, values_ + begin, end - begin); });
    });
    return values_;
  }

 private:
  TensorView view_;
  float* values_;
};

// An output.
class FloatResults {
 public:
  FloatResults(OpContext& ctx, const TensorView& view) : view_(view), values_(FloatRoom(ctx, view)) {}

  float* values() const { return values_; }
  int64_t elements() const { return view_.elements(); }
  // In the launch, after all values are written: rounds them.
  void Store(const char* op) const {
    if (view_.dtype == DType::kFloat32) return;
    DispatchFloats(op, view_.dtype, [&](auto tag) {
      auto* to = view_.as<decltype(tag)>();
      ParallelFor(view_.elements(), kConversionGrain,
                  [&](int64_t begin, int64_t end) { FromFloat(values_ + begin, to + begin, end - begin); });
    });
  }

 private:
  TensorView view_;
  float* values_;
};

}  // namespace npu
