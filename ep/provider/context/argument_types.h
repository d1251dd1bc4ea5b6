// The types of an operator's inputs as its schema ties them together: in an ordinary model onnxruntime checks that, but
// it does not know the operator that an EPContext stands for, and kernels rely on it.
#pragma once

#include "ep/provider/fusion/rule.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

// Throws Error(kInvalidArgument) if inputs that have to be of one type are not.
void CheckArgumentTypes(const Api& api, const FusedNode& node, const OpDef& def);

}  // namespace npu::provider
