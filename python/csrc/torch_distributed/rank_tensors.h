// What ranks tell each other of tensors, and checks of those of a collective, of which each rank has a part.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace npu::distributed {

// A tensor's type of element, as ranks tell it each other.
int64_t TypeOf(const at::Tensor& tensor);

// Whether a list has a tensor of another size than `whole`.
bool IsUneven(const std::vector<at::Tensor>& parts, const at::Tensor& whole);

// Of a list of tensors of several sizes, the one of this rank is like `own`.
void CheckUneven(const char* op, const std::vector<at::Tensor>& parts, const at::Tensor& own, int rank, int ranks);

// A collective writes whole tensors of one dtype and size per rank.
void CheckParts(const char* op, const std::vector<at::Tensor>& parts, const at::Tensor& whole, int ranks);

// `whole` has room for one `part` of each rank.
void CheckWhole(const char* op, const at::Tensor& whole, const at::Tensor& part, int ranks);

}  // namespace npu::distributed
