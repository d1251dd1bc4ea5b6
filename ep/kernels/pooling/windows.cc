#include "ep/kernels/pooling/windows.h"

#include <utility>

#include "ep/kernels/op_check.h"

namespace npu::pooling {
namespace {

constexpr int64_t kMaxDimension = int64_t{1} << 60;  // so that no position overflows
constexpr int64_t kMaxTaps = 16;                     // longer windows are reduced one by one

void CheckRange(const char* op, const char* name, const std::vector<int64_t>& values, size_t count, int64_t least) {
  NPU_OP_CHECK(op, values.size() == count, "expected ", count, " ", name, ", got ", values.size());
  for (const int64_t value : values) {
    NPU_OP_CHECK(op, value >= least && value <= kMaxAttribute, "expected ", name, " from ", least, " to ",
                 kMaxAttribute, ", got ", value);
  }
}

void CheckInput(const char* op, const Shape& input, size_t spatial) {
  NPU_OP_CHECK(op, spatial > 0 && static_cast<size_t>(input.rank()) == spatial + 2, "expected an input [N, C] and ",
               std::max<size_t>(spatial, 1), " spatial dimensions, got shape ", input);
  for (int d = 2; d < input.rank(); ++d) {
    NPU_OP_CHECK(op, input[d] > 0 && input[d] < kMaxDimension, "expected spatial dimensions with elements, got shape ",
                 input);
  }
}

}  // namespace

std::vector<int64_t> ReadList(const char* op, const Attributes& attributes, const char* name, size_t count,
                              int64_t fallback, int64_t least) {
  const std::vector<int64_t> values = attributes.Ints(name, std::vector<int64_t>(count, fallback));
  CheckRange(op, name, values, count, least);
  return values;
}

AutoPad ReadAutoPad(const char* op, const Attributes& attributes) {
  const std::string name = attributes.String("auto_pad");
  const std::pair<const char*, AutoPad> modes[] = {{"NOTSET", AutoPad::kNotSet},
                                                   {"SAME_UPPER", AutoPad::kSameUpper},
                                                   {"SAME_LOWER", AutoPad::kSameLower},
                                                   {"VALID", AutoPad::kValid}};
  const auto* mode = std::find_if(std::begin(modes), std::end(modes), [&](const auto& m) { return name == m.first; });
  NPU_OP_CHECK(op, mode != std::end(modes), "expected auto_pad NOTSET, SAME_UPPER, SAME_LOWER or VALID, got ", name);
  return mode->second;
}

Window Axis::At(int64_t o) const {
  if (kernel == 0) {
    const int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    return {begin, end, end - begin, end - begin};
  }
  const int64_t start = o * stride - before;
  const int64_t reach = start + (kernel - 1) * dilation + 1;
  const int64_t begin = start < 0 ? start + (-start + dilation - 1) / dilation * dilation : start;
  const int64_t end = std::min(reach, in);
  return {begin, end, begin < end ? (end - begin - 1) / dilation + 1 : 0,
          (std::min(reach, in + after) - start - 1) / dilation + 1};
}

Sliding::Sliding(const char* op, const Attributes& attributes)
    : Sliding(op, attributes, attributes.Ints("kernel_shape")) {
  const size_t spatial = kernel_.size();
  for (size_t d = 0; auto_pad_ == AutoPad::kNotSet && d < 2 * spatial; ++d) {
    NPU_OP_CHECK(op, pads_[d] < kernel_[d % spatial], "expected pads smaller than the kernel of ", kernel_[d % spatial],
                 ", got ", pads_[d]);
  }
}

Sliding::Sliding(const char* op, const Attributes& attributes, std::vector<int64_t> kernel)
    : op_(op), kernel_(std::move(kernel)), ceil_(attributes.Bool("ceil_mode", false)) {
  const size_t spatial = kernel_.size();
  CheckRange(op, "kernel_shape", kernel_, spatial, 1);
  strides_ = ReadList(op, attributes, "strides", spatial, 1, 1);
  dilations_ = ReadList(op, attributes, "dilations", spatial, 1, 1);
  pads_ = ReadList(op, attributes, "pads", 2 * spatial, 0, 0);
  auto_pad_ = ReadAutoPad(op, attributes);
}

Axis Sliding::AxisOf(size_t d, int64_t in) const {
  Axis axis;
  axis.in = in;
  axis.kernel = kernel_[d];
  axis.stride = strides_[d];
  axis.dilation = dilations_[d];
  const int64_t reach = (axis.kernel - 1) * axis.dilation + 1;
  if (auto_pad_ == AutoPad::kSameUpper || auto_pad_ == AutoPad::kSameLower) {
    axis.out = (in - 1) / axis.stride + 1;
    const int64_t padding = std::max<int64_t>(0, (axis.out - 1) * axis.stride + reach - in);
    axis.before = auto_pad_ == AutoPad::kSameUpper ? padding / 2 : padding - padding / 2;
    axis.after = padding - axis.before;
    return axis;
  }
  if (auto_pad_ == AutoPad::kNotSet) {
    axis.before = pads_[d];
    axis.after = pads_[d + kernel_.size()];
  }
  const int64_t room = in + axis.before + axis.after - reach + (ceil_ ? axis.stride - 1 : 0);
  NPU_OP_CHECK(op_, room >= 0, "expected a window that fits the padded input, got one of ", reach, " for ",
               in + axis.before + axis.after, " positions of spatial axis ", d);
  axis.out = room / axis.stride + 1;
  if (ceil_ && (axis.out - 1) * axis.stride >= in + axis.before) --axis.out;  // it would begin beyond the input
  return axis;
}

std::vector<Axis> Sliding::AxesOf(const Shape& input) const {
  CheckInput(op_, input, kernel_.size());
  std::vector<Axis> axes;
  for (size_t d = 0; d < kernel_.size(); ++d) axes.push_back(AxisOf(d, input[static_cast<int>(d) + 2]));
  return axes;
}

std::vector<Axis> AdaptiveAxes(const char* op, const Shape& input, const std::vector<int64_t>& sizes) {
  CheckInput(op, input, sizes.size());
  std::vector<Axis> axes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    Axis axis;
    axis.in = input[static_cast<int>(d) + 2];
    axis.out = sizes[d];
    int64_t product = 0;
    NPU_OP_CHECK(op,
                 axis.out >= 0 && axis.out < kMaxDimension && !__builtin_mul_overflow(axis.in, axis.out + 2, &product),
                 "expected output sizes from 0 on whose products with the input's are in range, got ", axis.out);
    axes.push_back(axis);
  }
  return axes;
}

Shape OutputShape(const Shape& input, const std::vector<Axis>& axes) {
  Shape shape{input[0], input[1]};
  for (const Axis& axis : axes) shape.push_back(axis.out);
  return shape;
}

Plan::Plan(const Shape& input, std::vector<Axis> axes, bool column_major)
    : axes_(std::move(axes)), planes_(input.Elements(0, 2)) {
  const bool whole = std::all_of(axes_.begin(), axes_.end(), [](const Axis& a) { return a.kernel == 0 && a.out == 1; });
  if (whole) {  // one window over the plane, which is one long row
    Axis plane;
    plane.in = input.Elements(2, input.rank());
    plane.out = 1;
    axes_ = {plane};
  }
  const int rank = leading() + 1;
  row_stride_.fill(1);
  index_stride_.fill(1);
  for (int d = rank - 2; d >= 0; --d) {
    row_stride_[d] = rows_in_;
    rows_in_ *= axes_[d].in;
    rows_out_ *= axes_[d].out;
  }
  for (int d = 0; d < rank; ++d) {
    for (int other = column_major ? 0 : d + 1; other < (column_major ? d : rank); ++other)
      index_stride_[d] *= axes_[other].in;
  }
  windows_.reserve(static_cast<size_t>(columns()));
  for (int64_t o = 0; o < columns(); ++o) windows_.push_back(axes_.back().At(o));
  for (const Axis& axis : axes_)
    taps_ *= std::max<int64_t>(1, axis.kernel == 0 ? axis.in / axis.out : std::min(axis.kernel, axis.in));
  by_tap_ = axes_.back().kernel > 0 && axes_.back().kernel <= kMaxTaps;
}

Plan::Positions Plan::WindowsOf(int64_t output_row) const {
  Positions windows;
  for (int d = leading() - 1; d >= 0; --d) {
    windows[d] = axes_[d].At(output_row % axes_[d].out);
    output_row /= axes_[d].out;
  }
  return windows;
}

int64_t Plan::FirstIndex(int64_t output_row) const {
  const Positions windows = WindowsOf(output_row);
  int64_t index = windows_[0].begin * index_stride_.back();
  for (int d = 0; d < leading(); ++d) index += windows[d].begin * index_stride_[d];
  return index;
}

double Plan::RowCount(int64_t output_row, bool padded) const {
  const Positions windows = WindowsOf(output_row);
  double count = 1;
  for (int d = 0; d < leading(); ++d) count *= static_cast<double>(padded ? windows[d].padded : windows[d].count);
  return count;
}

}  // namespace npu::pooling
