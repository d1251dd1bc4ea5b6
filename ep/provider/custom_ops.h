// The npu:: operators as ORT custom operators: they provide the schemas for a model without function bodies. The
// kernels run through the kernel registry; a node that stays on the CPU has no kernel and reports that.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <vector>

#include "ep/provider/abi.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {

class CustomOpDomain {
 public:
  explicit CustomOpDomain(const OrtApi& ort);
  ~CustomOpDomain();

  OrtCustomOpDomain* get() const { return domain_.get(); }

 private:
  struct Op;

  std::vector<std::unique_ptr<Op>> ops_;  // outlive the domain
  Owned<OrtCustomOpDomain> domain_;
};

}  // namespace npu::provider
