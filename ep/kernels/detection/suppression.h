// Greedy non-maximum suppression: of boxes by descending score, those that overlap none chosen before.
#pragma once

#include <cmath>
#include <limits>

#include "ep/kernels/detection/chosen_boxes.h"
#include "ep/kernels/detection/score_order.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu::detection {

inline constexpr int64_t kMostBoxes = std::numeric_limits<int32_t>::max();  // of one list; positions are int32

// Refuses what is not a threshold of intersection over union.
inline void CheckOverlap(const char* op, double threshold) {
  NPU_OP_CHECK(op, threshold >= 0 && threshold <= 1, "expected iou_threshold from 0 to 1, got ", threshold);
}

// Refuses more boxes than positions can tell apart.
inline void CheckBoxes(const char* op, int64_t n) {
  NPU_OP_CHECK(op, n <= kMostBoxes, "expected boxes that int32 counts, got ", n);
}

// Refuses what is not a number of boxes.
inline void CheckCount(const char* op, const char* name, double count) {
  NPU_OP_CHECK(op, count >= 0 && count <= static_cast<double>(kMostBoxes) && count == std::floor(count), "expected ",
               name, " to be a whole number from 0 to ", kMostBoxes, ", got ", count);
}

}  // namespace npu::detection
