#include "ep/kernels/resample/taps.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/movement/copy.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"

namespace npu::resample {

double Filter::At(double distance) const {
  const double d = std::fabs(distance);
  if (d >= support()) return 0;
  if (kind == Kind::kLinear) return 1 - d;
  if (kind == Kind::kLanczos) {
    const auto sinc = [](double x) { return x == 0 ? 1 : std::sin(M_PI * x) / (M_PI * x); };
    return sinc(d) * sinc(d / support());
  }
  return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

Taps::Taps(int64_t inputs, const AxisMap& map) : inputs_(inputs) {
  for (const int64_t from : map) {
    if (from >= 0) {
      from_.push_back(from);
      weights_.push_back(1);
    }
    begin_.push_back(static_cast<int64_t>(from_.size()));
  }
}

void Taps::Add(double position, const Filter& filter, double stretched, bool exclude_outside) {
  const double reach = filter.support() * stretched;
  // Farther out, all neighbours are the edge element, to which NaN maps as well.
  const double at = std::fmin(std::fmax(position, -reach), static_cast<double>(inputs_ - 1) + reach);
  const auto first = static_cast<int64_t>(std::floor(at - reach)) + 1;
  const auto last = static_cast<int64_t>(std::ceil(at + reach)) - 1;
  const size_t begin = from_.size();
  double sum = 0;
  for (int64_t i = first; i <= last; ++i) {
    if (exclude_outside && (i < 0 || i >= inputs_)) continue;
    const double weight = filter.At((static_cast<double>(i) - at) / stretched);
    sum += weight;
    const int64_t from = std::clamp<int64_t>(i, 0, inputs_ - 1);
    if (from_.size() > begin && from_.back() == from) {
      weights_.back() += weight;
    } else {
      from_.push_back(from);
      weights_.push_back(weight);
    }
  }
  if (exclude_outside || stretched > 1) {
    for (size_t k = begin; k < weights_.size(); ++k) weights_[k] /= sum;
  }
  begin_.push_back(static_cast<int64_t>(from_.size()));
}

void Taps::AddConstant(double value) {
  constant_ = value;
  begin_.push_back(static_cast<int64_t>(from_.size()));
}

Taps Taps::Transposed() const {
  Taps back(outputs());
  back.begin_.assign(static_cast<size_t>(inputs_) + 1, 0);
  for (const int64_t from : from_) ++back.begin_[static_cast<size_t>(from) + 1];
  for (size_t i = 1; i < back.begin_.size(); ++i) back.begin_[i] += back.begin_[i - 1];
  back.from_.resize(from_.size());
  back.weights_.resize(from_.size());
  std::vector<int64_t> next(back.begin_.begin(), back.begin_.end() - 1);
  for (int64_t o = 0; o < outputs(); ++o) {
    for (int64_t k = Begin(o); k < Begin(o + 1); ++k) {
      const auto place = static_cast<size_t>(next[static_cast<size_t>(From(k))]++);
      back.from_[place] = o;
      back.weights_[place] = Weight(k);
    }
  }
  return back;
}

namespace {

// A pass along one axis of dense tensors, [outer, taps.inputs(), inner] to [outer, taps.outputs(), inner].
struct Pass {
  std::shared_ptr<const Taps> taps;
  int64_t outer, inner;

  int64_t Blocks() const { return (inner + kRowBlock - 1) / kRowBlock; }
};

// y[i] = the weighted sum of the taps' rows, for a block of neighbours.
template <class C, class From, class To>
void SumBlock(const Taps& taps, int64_t output, const From* x, int64_t inner, int64_t count, To* y) {
  alignas(64) C sums[kRowBlock];
  const int64_t begin = taps.Begin(output), end = taps.Begin(output + 1);
  std::fill(sums, sums + count, begin == end ? static_cast<C>(taps.constant()) : C{0});
  InBlock<std::conditional_t<kIsHalf<From>, From, float>> block;
  for (int64_t k = begin; k < end; ++k) {
    const C weight = static_cast<C>(taps.Weight(k));
    const From* row = x + taps.From(k) * inner;
    const C* values = nullptr;
    if constexpr (kIsHalf<From>) {
      values = block.Load(row, count);
    } else {
      values = row;
    }
    for (int64_t i = 0; i < count; ++i) sums[i] += weight * values[i];
  }
  if constexpr (kIsHalf<To>) {
    FromFloat(sums, y, count);
  } else {
    std::copy(sums, sums + count, y);
  }
}

// Along the last axis: each element of a row has its own taps.
template <class C, class From, class To>
void RunRows(const Taps& taps, int64_t rows, const From* x, To* y) {
  const int64_t outputs = taps.outputs(), inputs = taps.inputs();
  ParallelFor(rows * outputs, RowGrain(4), [&](int64_t begin, int64_t end) {
    int64_t o = begin % outputs;
    const From* row = x + begin / outputs * inputs;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = taps.Begin(o), last = taps.Begin(o + 1);
      C sum = first == last ? static_cast<C>(taps.constant()) : C{0};
      for (int64_t k = first; k < last; ++k)
        sum += static_cast<C>(taps.Weight(k)) * static_cast<C>(Upcast(row[taps.From(k)]));
      y[item] = Rounded<To>(static_cast<ComputeType<To>>(sum));
      if (++o < outputs) continue;
      o = 0;
      row += inputs;
    }
  });
}

template <class C, class From, class To>
void RunPass(const Pass& pass, const From* x, To* y) {
  const Taps& taps = *pass.taps;
  if (pass.inner == 1) return RunRows<C>(taps, pass.outer, x, y);
  const int64_t outputs = taps.outputs(), inputs = taps.inputs(), inner = pass.inner, blocks = pass.Blocks();
  const int64_t each = std::min(inner, kRowBlock) * 4;
  ParallelFor(pass.outer * outputs * blocks, RowGrain(each), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / blocks, from = item % blocks * kRowBlock;
      SumBlock<C>(taps, row % outputs, x + row / outputs * inputs * inner + from, inner,
                  std::min(kRowBlock, inner - from), y + row * inner + from);
    }
  });
}

template <class T>
struct Task {
  using C = ComputeType<T>;
  std::vector<Pass> passes;
  const T* x;
  T* y;
  C* between[2];  // passes alternate between them

  void Run() const {
    if (passes.size() == 1) return RunPass<C>(passes[0], x, y);
    RunPass<C>(passes[0], x, between[0]);
    for (size_t p = 1; p + 1 < passes.size(); ++p) RunPass<C>(passes[p], between[(p + 1) % 2], between[p % 2]);
    RunPass<C>(passes.back(), between[passes.size() % 2], y);
  }
};

}  // namespace

void LaunchTaps(OpContext& ctx, const char* op, const TensorView& x, const TensorView& y, std::vector<AxisTaps> axes) {
  if (y.elements() == 0) return;
  if (axes.empty()) return LaunchCopy(ctx, op, x, y);
  // Axes that shrink come first: no intermediate tensor is larger than the larger of input and output.
  std::stable_partition(axes.begin(), axes.end(),
                        [](const AxisTaps& a) { return a.taps.outputs() <= a.taps.inputs(); });
  Shape shape = x.shape;
  std::vector<Pass> passes;
  int64_t most = 0;
  for (AxisTaps& axis : axes) {
    NPU_OP_CHECK(op, shape[axis.axis] == axis.taps.inputs(), "expected ", axis.taps.inputs(), " elements along axis ",
                 axis.axis, ", got shape ", x.shape);
    shape[axis.axis] = axis.taps.outputs();
    passes.push_back({std::make_shared<const Taps>(std::move(axis.taps)), shape.Elements(0, axis.axis),
                      shape.Elements(axis.axis + 1, shape.rank())});
    if (passes.size() < axes.size()) most = std::max(most, shape.Elements());
  }
  NPU_OP_CHECK(op, shape == y.shape, "expected an output of shape ", shape, ", got ", y.shape);
  DispatchTypes(op, x.dtype, FloatTypes{}, [&](auto type) {
    using T = decltype(type);
    Task<T> task{std::move(passes), x.as<const T>(), y.as<T>(), {}};
    for (size_t i = 0; i < 2 && i + 1 < task.passes.size(); ++i)
      task.between[i] = static_cast<ComputeType<T>*>(ctx.Workspace(BytesFor(DTypeOf<ComputeType<T>>::value, most)));
    ctx.Launch(op, [task = std::move(task)] { task.Run(); });
  });
}

}  // namespace npu::resample
