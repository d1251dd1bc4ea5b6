#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/indexing/indexed_rows.h"

namespace npu {
namespace {

// y += factor * x. Integers wrap.
template <class T>
void AddRow(T* __restrict y, const T* __restrict x, ComputeType<T> factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<T>) {
      y[i] = static_cast<T>(static_cast<uint64_t>(y[i]) + static_cast<uint64_t>(factor) * static_cast<uint64_t>(x[i]));
    } else {
      y[i] = Rounded<T>(Upcast(y[i]) + factor * Upcast(x[i]));
    }
  }
}

// Reads `alpha` from the host: int64 for integers, float64 for floats.
template <class T>
ComputeType<T> ReadAlpha(const TensorView& alpha) {
  constexpr DType kWanted = std::is_integral_v<T> ? DType::kInt64 : DType::kFloat64;
  NPU_CHECK(alpha && alpha.dtype == kWanted && alpha.elements() == 1, "[index_add] expected alpha to be one ",
            NameOf(kWanted));
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(*alpha.as<int64_t>());
  } else {
    return static_cast<ComputeType<T>>(*alpha.as<double>());
  }
}

class IndexAddKernel : public Kernel {
 public:
  explicit IndexAddKernel(const KernelInfo& info) : axis_(info.attributes.Int("axis")) {}

  void Compute(OpContext& ctx) const override {
    const IndexedRows rows("index_add", ctx, axis_);
    const TensorView source = rows.Source("index_add", ctx.Input(2));
    DispatchTypes("index_add", rows.y.dtype, NumericTypes{}, [&](auto type) {
      using T = decltype(type);
      const ComputeType<T> factor = ReadAlpha<T>(ctx.Input(3));
      rows.LaunchStart("index_add", ctx);
      if (rows.empty()) return;
      DispatchIndices("index_add", rows.index, [&](auto index) {
        ctx.Launch("index_add", [rows, factor, at = rows.index.as<const decltype(index)>(), from = source.as<const T>(),
                                 to = rows.y.as<T>()] {
          ForEachIndexedRow<false>(
              "index_add", rows.view, at, rows.count, [&](int64_t row, int64_t k, int64_t begin, int64_t end) {
                AddRow(to + row * rows.view.inner + begin, from + k * rows.view.inner + begin, factor, end - begin);
              });
        });
      });
    });
  }

 private:
  int64_t axis_;
};

NPU_ONNX_KERNEL(IndexedRowsDef("IndexAdd", kNumeric,
                               {Input("source", kNumeric), HostInput("alpha", {DType::kInt64, DType::kFloat64})},
                               MakeKernel<IndexAddKernel>));

}  // namespace
}  // namespace npu
