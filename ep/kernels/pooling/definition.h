// What the kernels of pools share.
#pragma once

#include <utility>
#include <vector>

#include "ep/kernels/onnx_def.h"
#include "ep/kernels/pooling/windows.h"

namespace npu::pooling {

// The attributes that Sliding reads, followed by `more`.
inline std::vector<AttrDef> SlidingAttributes(std::vector<AttrDef> more) {
  std::vector<AttrDef> all = {{.name = "kernel_shape", .kind = AttrDef::Kind::kInts, .required = true},
                              IntsAttribute("strides"),
                              IntsAttribute("pads"),
                              StringAttribute("auto_pad", "NOTSET"),
                              IntAttribute("ceil_mode", 0)};
  for (AttrDef& attribute : more) all.push_back(std::move(attribute));
  return all;
}

// One window over all spatial positions.
inline std::vector<Axis> GlobalAxes(const char* op, const Shape& input) {
  return AdaptiveAxes(op, input, std::vector<int64_t>(std::max(input.rank() - 2, 0), 1));
}

// Runs task.Rows on the output rows of all planes.
template <class Task>
void LaunchRows(OpContext& ctx, const char* op, Task task) {
  ctx.Launch(op, [task = std::move(task)] {
    ParallelFor(task.plan.planes() * task.plan.rows_out(), task.plan.RowGrain(),
                [&](int64_t begin, int64_t end) { task.Rows(begin, end); });
  });
}

}  // namespace npu::pooling
