#include "python/csrc/torch/resample.h"

#include <array>
#include <utility>

#include "ep/runtime/thread_pool.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

// Planes of three dimensions on both sides; a dimension that a tensor lacks has one position.
class Volume {
 public:
  explicit Volume(std::vector<Taps> axes) {
    TORCH_INTERNAL_ASSERT(!axes.empty() && axes.size() <= 3);
    std::move(axes.begin(), axes.end(), axes_.end() - static_cast<int64_t>(axes.size()));
  }

  int64_t inputs() const { return axes_[0].inputs * axes_[1].inputs * axes_[2].inputs; }
  int64_t outputs() const { return rows() * axes_[2].outputs(); }
  int64_t rows() const { return axes_[0].outputs() * axes_[1].outputs(); }
  const Taps& columns() const { return axes_[2]; }

  // f(beginning of an input's row, its weight) for all rows that an output's row is made of.
  template <class F>
  void ForEachRow(int64_t row, F f) const {
    const Taps &deep = axes_[0], &high = axes_[1];
    const int64_t z = row / high.outputs() * deep.count, y = row % high.outputs() * high.count;
    for (int64_t i = z; i < z + deep.count; ++i)
      for (int64_t j = y; j < y + high.count; ++j)
        f((deep.from[At(i)] * high.inputs + high.from[At(j)]) * axes_[2].inputs, Weight(deep, i) * Weight(high, j));
  }
  static size_t At(int64_t i) { return static_cast<size_t>(i); }
  static double Weight(const Taps& axis, int64_t i) { return axis.weights.empty() ? 1 : axis.weights[At(i)]; }

 private:
  std::array<Taps, 3> axes_;
};

template <class T>
void GatherTaps(const Volume& volume, int64_t planes, const T* from, T* to) {
  const Taps& columns = volume.columns();
  const int64_t width = columns.outputs();
  ParallelFor(planes * volume.rows(), 4096 / (width + 1) + 1, [&](int64_t begin, int64_t end) {
    std::vector<Real<T>> sums(static_cast<size_t>(width));
    for (int64_t r = begin; r < end; ++r) {
      std::fill(sums.begin(), sums.end(), Real<T>{0});
      volume.ForEachRow(r % volume.rows(), [&](int64_t row, double weight) {
        const T* in = from + r / volume.rows() * volume.inputs() + row;
        for (int64_t x = 0, tap = 0; x < width; ++x)
          for (int64_t k = 0; k < columns.count; ++k, ++tap)
            sums[Volume::At(x)] += static_cast<Real<T>>(in[columns.from[Volume::At(tap)]]) *
                                   static_cast<Real<T>>(weight * Volume::Weight(columns, tap));
      });
      for (int64_t x = 0; x < width; ++x) to[r * width + x] = static_cast<T>(sums[Volume::At(x)]);
    }
  });
}

template <class T>
void ScatterTaps(const Volume& volume, int64_t planes, const T* grad, T* grad_input) {
  const Taps& columns = volume.columns();
  const int64_t width = columns.outputs();
  ParallelFor(planes, 1, [&](int64_t begin, int64_t end) {
    std::vector<Real<T>> sums(static_cast<size_t>(volume.inputs()));
    for (int64_t plane = begin; plane < end; ++plane) {
      std::fill(sums.begin(), sums.end(), Real<T>{0});
      for (int64_t r = 0; r < volume.rows(); ++r) {
        const T* g = grad + plane * volume.outputs() + r * width;
        volume.ForEachRow(r, [&](int64_t row, double weight) {
          for (int64_t x = 0, tap = 0; x < width; ++x)
            for (int64_t k = 0; k < columns.count; ++k, ++tap)
              sums[Volume::At(row + columns.from[Volume::At(tap)])] +=
                  static_cast<Real<T>>(g[x]) * static_cast<Real<T>>(weight * Volume::Weight(columns, tap));
        });
      }
      for (int64_t i = 0; i < volume.inputs(); ++i)
        grad_input[plane * volume.inputs() + i] = static_cast<T>(sums[Volume::At(i)]);
    }
  });
}

// Both ways of one walk: `planes` tell how often `to` has what the walk writes.
template <bool backward>
void LaunchResample(const char* op, std::vector<Taps> axes, const at::Tensor& from, at::Tensor& to) {
  if (to.numel() == 0) return;
  if (from.numel() == 0) {
    to.zero_();
    return;
  }
  const at::Tensor x = Dense(from), target = DenseTarget(to, from.scalar_type());
  const Volume volume(std::move(axes));
  const int64_t planes = to.numel() / (backward ? volume.inputs() : volume.outputs());
  DispatchNumbers(from.scalar_type(), [&]<class T>(T) {
    StreamOf(x).Launch(op, [volume, planes, in = static_cast<const T*>(x.const_data_ptr()),
                            out = static_cast<T*>(target.mutable_data_ptr())] {
      backward ? ScatterTaps(volume, planes, in, out) : GatherTaps(volume, planes, in, out);
    });
  });
  Deliver(target, to);
}

}  // namespace

void Resample(const char* op, std::vector<Taps> axes, const at::Tensor& from, at::Tensor& to) {
  LaunchResample<false>(op, std::move(axes), from, to);
}
void ResampleBackward(const char* op, std::vector<Taps> axes, const at::Tensor& grad, at::Tensor& grad_input) {
  LaunchResample<true>(op, std::move(axes), grad, grad_input);
}

}  // namespace npu::aten
