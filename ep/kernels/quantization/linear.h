// The kernels of QuantizeLinear and DequantizeLinear, for com.microsoft's operators of these names.
#pragma once

#include <memory>

#include "ep/runtime/kernel_api.h"

namespace npu {

std::unique_ptr<Kernel> MakeQuantizeLinear(const KernelInfo& info);
std::unique_ptr<Kernel> MakeDequantizeLinear(const KernelInfo& info);

}  // namespace npu
