#include "ep/kernels/movement/pad_axis.h"

#include <algorithm>
#include <limits>

#include "ep/kernels/op_check.h"

namespace npu {
namespace {

// The input coordinate of coordinate i of an infinitely padded axis, or -1. As in onnxruntime, wrapping repeats only
// [begin, end), the part that negative pads leave.
int64_t SourceOf(PadMode mode, int64_t i, int64_t dim, int64_t begin, int64_t end) {
  if (i >= begin && i < end) return i;
  switch (mode) {
    case PadMode::kConstant:
      return -1;
    case PadMode::kEdge:
      return i < 0 ? 0 : dim - 1;
    case PadMode::kWrap: {
      const int64_t left = end - begin;
      return begin + (((i - begin) % left) + left) % left;
    }
    case PadMode::kReflect:
      break;
  }
  if (dim == 1) return 0;
  const int64_t period = 2 * (dim - 1);
  const int64_t at = ((i % period) + period) % period;
  return at < dim ? at : period - at;
}

}  // namespace

bool ParsePadMode(const std::string& name, PadMode* mode) {
  if (name == "constant")
    *mode = PadMode::kConstant;
  else if (name == "reflect")
    *mode = PadMode::kReflect;
  else if (name == "edge")
    *mode = PadMode::kEdge;
  else if (name == "wrap")
    *mode = PadMode::kWrap;
  else
    return false;
  return true;
}

int64_t PaddedDim(const char* op, PadMode mode, int axis, int64_t before, int64_t after, int64_t dim) {
  // Bounds that keep every sum below in range; no tensor is near them.
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 8;
  NPU_OP_CHECK(op, before > -kLimit && before < kLimit && after > -kLimit && after < kLimit && dim < kLimit,
               "expected pads that leave a dimension in range, got ", before, " and ", after, " for axis ", axis);
  const int64_t out = dim + before + after;
  NPU_OP_CHECK(op, out >= 0, "expected pads that leave a dimension >= 0, got ", before, " and ", after, " for axis ",
               axis, " of ", dim);
  const int64_t left = mode == PadMode::kWrap ? std::min({dim, dim + before, dim + after}) : dim;
  NPU_OP_CHECK(op, mode == PadMode::kConstant || left > 0 || out == 0, "expected elements to repeat along axis ", axis,
               ", got none of ", dim, " with pads ", before, " and ", after);
  return out;
}

AxisMap PadMap(PadMode mode, int64_t dim, int64_t before, int64_t after) {
  const int64_t begin = std::max<int64_t>(0, -before), end = dim + std::min<int64_t>(0, after);
  AxisMap map(static_cast<size_t>(dim + before + after));
  for (size_t i = 0; i < map.size(); ++i) map[i] = SourceOf(mode, static_cast<int64_t>(i) - before, dim, begin, end);
  return map;
}

}  // namespace npu
