// Tensors whose elements are weighted sums of another tensor's along some axes: resizing of images and its gradients.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ep/kernels/movement/mapped_copy.h"
#include "ep/runtime/kernel_api.h"

namespace npu::resample {

// A function of the distance from a position, zero at and beyond `support`.
struct Filter {
  enum class Kind { kLinear, kCubic, kLanczos } kind = Kind::kLinear;
  double a = -0.75;  // of a cubic filter

  double support() const { return kind == Kind::kLinear ? 1 : kind == Kind::kCubic ? 2 : 3; }
  double At(double distance) const;
};

// For one axis, which input coordinates each output coordinate is a weighted sum of.
class Taps {
 public:
  explicit Taps(int64_t inputs) : inputs_(inputs) {}
  // One tap of weight 1 for each entry; none for -1.
  Taps(int64_t inputs, const AxisMap& map);

  // Adds the next output: the inputs around `position` weighted by the filter, which is widened by the factor
  // `stretched`. A neighbour outside is replaced by the one at the edge, or left out and the other weights normalised
  // to a sum of one.
  void Add(double position, const Filter& filter, double stretched, bool exclude_outside);
  // Adds an output without taps, whose value is `value`.
  void AddConstant(double value);
  // The taps that map each output back to the inputs it was a sum of.
  Taps Transposed() const;

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return static_cast<int64_t>(begin_.size()) - 1; }

  // The tap k in [Begin(o), Begin(o + 1)) of the output o reads the input From(k).
  int64_t Begin(int64_t output) const { return begin_[static_cast<size_t>(output)]; }
  int64_t From(int64_t tap) const { return from_[static_cast<size_t>(tap)]; }
  double Weight(int64_t tap) const { return weights_[static_cast<size_t>(tap)]; }
  double constant() const { return constant_; }  // of outputs without taps

 private:
  int64_t inputs_;
  std::vector<int64_t> begin_{0}, from_;
  std::vector<double> weights_;
  double constant_ = 0;
};

struct AxisTaps {
  int axis;
  Taps taps;
};

// Enqueues y, of floats, from x by the taps of some axes; the other axes have equal sizes. Sums are computed in float,
// or double, and rounded once.
void LaunchTaps(OpContext& ctx, const char* op, const TensorView& x, const TensorView& y, std::vector<AxisTaps> axes);

}  // namespace npu::resample
