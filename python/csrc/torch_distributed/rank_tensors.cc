#include "python/csrc/torch_distributed/rank_tensors.h"

#include <algorithm>

namespace npu::distributed {

int64_t TypeOf(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.scalar_type()); }

bool IsUneven(const std::vector<at::Tensor>& parts, const at::Tensor& whole) {
  return std::any_of(parts.begin(), parts.end(), [&](const at::Tensor& part) { return part.numel() != whole.numel(); });
}

void CheckUneven(const char* op, const std::vector<at::Tensor>& parts, const at::Tensor& own, int rank, int ranks) {
  TORCH_CHECK(static_cast<int>(parts.size()) == ranks, "[hccl] ", op, " expected ", ranks,
              " tensors, one of each rank, got ", parts.size());
  const at::Tensor& mine = parts[static_cast<size_t>(rank)];
  TORCH_CHECK(mine.numel() == own.numel(), "[hccl] ", op, " expected a tensor of ", own.numel(), " elements for rank ",
              rank, ", got ", mine.numel());
  for (const at::Tensor& part : parts)
    TORCH_CHECK(part.scalar_type() == own.scalar_type(), "[hccl] ", op, " expected tensors of ", own.scalar_type(),
                ", got one of ", part.scalar_type());
}

void CheckParts(const char* op, const std::vector<at::Tensor>& parts, const at::Tensor& whole, int ranks) {
  TORCH_CHECK(static_cast<int>(parts.size()) == ranks, "[hccl] ", op, " expected ", ranks,
              " tensors, one of each rank, got ", parts.size());
  for (const at::Tensor& part : parts)
    TORCH_CHECK(part.scalar_type() == whole.scalar_type() && part.numel() == whole.numel(), "[hccl] ", op,
                " expected tensors of ", whole.numel(), " elements of ", whole.scalar_type(), ", got ", part.numel(),
                " of ", part.scalar_type());
}

void CheckWhole(const char* op, const at::Tensor& whole, const at::Tensor& part, int ranks) {
  TORCH_CHECK(whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * ranks, "[hccl] ", op,
              " expected ", part.numel() * ranks, " elements of ", part.scalar_type(), " for ", ranks, " ranks, got ",
              whole.numel(), " of ", whole.scalar_type());
}

}  // namespace npu::distributed
