// torch's embedding_bag: sums, means and maxima over bags of an embedding's rows. The values in the operands are
// checked when the kernel runs.
#include <algorithm>
#include <vector>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"

namespace npu {
namespace {

enum class BagMode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

struct Bags {
  int64_t count, width, indices, padding;
  BagMode mode;
  bool closed;  // whether the last offset only ends the last bag
  CheckedNumbers<int64_t> row;
  const int64_t* offset;

  // Where each bag begins, and where the last one ends. Checks all bags before any is computed: overlapping bags would
  // be written by two threads.
  std::vector<int64_t> CheckedBounds() const {
    std::vector<int64_t> bounds{0};
    if (count == 0) return bounds;
    const int64_t first = ReadOnce(offset);
    NPU_CHECK(first == 0, "[embedding_bag] offsets[0] has to be 0, got ", first);
    bounds.reserve(static_cast<size_t>(count) + 1);
    for (int64_t bag = 0; bag < count; ++bag) {
      const int64_t begin = bounds.back(), end = bag + 1 < count || closed ? ReadOnce(offset + bag + 1) : indices;
      NPU_CHECK(begin <= end && end <= indices, "[embedding_bag] expected offsets in order and up to ", indices,
                ", got ", begin, " and ", end);
      bounds.push_back(end);
    }
    return bounds;
  }
};

template <class T>
struct BagData {
  const T *weight, *factors;  // null: no factors
  T* out;
  int64_t *bag_of, *sizes, *best;  // best: only in max mode
};

template <class T>
void AddScaledRow(ComputeType<T>* __restrict sums, const T* __restrict row, ComputeType<T> factor, int64_t width) {
  for (int64_t c = 0; c < width; ++c) sums[c] += factor * Upcast(row[c]);
}

template <class T>
void TakeGreater(ComputeType<T>* sums, const T* row, int64_t index, bool first, int64_t* best, int64_t width) {
  for (int64_t c = 0; c < width; ++c) {
    const ComputeType<T> x = Upcast(row[c]);
    if (!first && !(x > sums[c])) continue;
    sums[c] = x;
    best[c] = index;
  }
}

template <class T>
void ReduceBag(const Bags& bags, const BagData<T>& data, const int64_t* bounds, int64_t bag, ComputeType<T>* sums) {
  using C = ComputeType<T>;
  std::fill_n(sums, bags.width, C{0});
  int64_t size = 0;
  int64_t* best = bags.mode == BagMode::kMax ? data.best + bag * bags.width : nullptr;
  if (best != nullptr) std::fill_n(best, bags.width, int64_t{-1});
  for (int64_t i = bounds[bag]; i < bounds[bag + 1]; ++i) {
    data.bag_of[i] = bag;
    const int64_t index = bags.row[i];
    if (index == bags.padding) continue;
    const T* row = data.weight + index * bags.width;
    if (best != nullptr) {
      TakeGreater(sums, row, index, size == 0, best, bags.width);
    } else {
      AddScaledRow(sums, row, data.factors == nullptr ? C{1} : Upcast(data.factors[i]), bags.width);
    }
    ++size;
  }
  data.sizes[bag] = size;
  const C scale = bags.mode == BagMode::kMean && size > 0 ? C{1} / static_cast<C>(size) : C{1};
  T* out = data.out + bag * bags.width;
  for (int64_t c = 0; c < bags.width; ++c) out[c] = Rounded<T>(sums[c] * scale);
}

template <class T>
void ReduceBags(const Bags& bags, const BagData<T>& data) {
  const std::vector<int64_t> bounds = bags.CheckedBounds();
  // An index beyond the last offset belongs to no bag.
  std::fill(data.bag_of + bounds.back(), data.bag_of + bags.indices, int64_t{-1});
  ParallelFor(bags.count, 1, [&](int64_t first, int64_t last) {
    std::vector<ComputeType<T>> sums(static_cast<size_t>(bags.width));
    for (int64_t bag = first; bag < last; ++bag) ReduceBag(bags, data, bounds.data(), bag, sums.data());
  });
}

class EmbeddingBagKernel : public Kernel {
 public:
  explicit EmbeddingBagKernel(const KernelInfo& info)
      : mode_(static_cast<BagMode>(info.attributes.Int("mode"))),
        closed_(info.attributes.Bool("include_last_offset")),
        padding_(info.attributes.Int("padding_idx")) {
    NPU_CHECK(mode_ >= BagMode::kSum && mode_ <= BagMode::kMax, "[embedding_bag] expected mode 0, 1 or 2, got ",
              info.attributes.Int("mode"));
  }

  void Compute(OpContext& ctx) const override {
    const TensorView weight = ctx.Input(0), indices = ctx.Input(1), offsets = ctx.Input(2), factors = ctx.Input(3);
    NPU_CHECK(weight && weight.shape.rank() == 2, "[embedding_bag] expected a weight of two dimensions, got ",
              weight.shape);
    for (const TensorView& t : {indices, offsets})
      NPU_CHECK(t && t.dtype == DType::kInt64 && t.shape.rank() == 1,
                "[embedding_bag] expected lists of int64 indices and offsets, got ", NameOf(t.dtype), " of ", t.shape);
    NPU_CHECK(!factors || (factors.dtype == weight.dtype && factors.shape == indices.shape),
              "[embedding_bag] expected per_sample_weights of the weight's dtype and of shape ", indices.shape,
              ", got ", NameOf(factors.dtype), " of ", factors.shape);
    NPU_CHECK(!factors || mode_ == BagMode::kSum,
              "[embedding_bag] expected per_sample_weights with mode 0, the sum, only");
    NPU_CHECK(!closed_ || offsets.elements() > 0,
              "[embedding_bag] expected at least one offset, which ends the last bag");
    NPU_CHECK(offsets.elements() > 0 || indices.elements() == 0, "[embedding_bag] expected offsets for ",
              indices.elements(), " indices");
    const int64_t count = offsets.elements() - (closed_ ? 1 : 0), width = weight.shape[1];
    const TensorView out = ctx.Output(0, weight.dtype, {count, width});
    const TensorView bag_of = ctx.Output(1, DType::kInt64, indices.shape);
    const TensorView sizes = ctx.Output(2, DType::kInt64, {count});
    const TensorView best = ctx.Output(3, DType::kInt64, {mode_ == BagMode::kMax ? count : 0, width});
    NPU_CHECK(out && bag_of && sizes && best, "[embedding_bag] expected the four outputs to be asked for together");
    const CheckedNumbers row("embedding_bag", "an index", indices.as<const int64_t>(), 0, weight.shape[0]);
    const Bags bags{count, width, indices.elements(), padding_, mode_, closed_, row, offsets.as<const int64_t>()};
    DispatchTypes("embedding_bag", weight.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const BagData<T> data{weight.as<const T>(), factors.as<const T>(), out.as<T>(),
                            bag_of.as<int64_t>(), sizes.as<int64_t>(),   best.as<int64_t>()};
      ctx.Launch("embedding_bag", [bags, data] { ReduceBags(bags, data); });
    });
  }

 private:
  BagMode mode_;
  bool closed_;
  int64_t padding_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "EmbeddingBag",
    .inputs = {Input("weight", kAllFloats), Input("indices", kInt64), Input("offsets", kInt64),
               OptionalInput("per_sample_weights", kAllFloats)},
    .outputs = {Output("output", kAllFloats), Output("offset2bag", kInt64), Output("bag_size", kInt64),
                Output("max_indices", kInt64)},
    .attributes = {IntAttribute("mode", 0), IntAttribute("include_last_offset", 0), IntAttribute("padding_idx", -1)},
    .make = MakeKernel<EmbeddingBagKernel>,
});

}  // namespace
}  // namespace npu
