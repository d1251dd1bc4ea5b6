// Runs the project's kernels on npu tensors: checked and enqueued on the current stream, without a wait.
#pragma once

#include <ATen/core/ATen_fwd.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <utility>
#include <vector>

#include "ep/runtime/attributes.h"
#include "ep/runtime/eager_context.h"
#include "ep/runtime/tensor.h"
#include "python/csrc/torch/operator_kernels.h"

namespace npu::aten {

DType ToDType(at::ScalarType dtype);  // kUndefined: kernels do not support it
at::ScalarType ToScalarType(DType dtype);

// `tensor` dense and of `dtype` on the device; itself if it already is. A 0-dimensional CPU tensor is copied there.
at::Tensor Dense(const at::Tensor& tensor, at::ScalarType dtype);
inline at::Tensor Dense(const at::Tensor& tensor) { return Dense(tensor, tensor.scalar_type()); }
// A scalar on the CPU, which any operator accepts next to npu tensors.
inline bool IsHostScalar(const at::Tensor& t) { return t.is_cpu() && t.dim() == 0; }
using MaybeTensor = std::optional<at::Tensor>;
inline bool Has(const MaybeTensor& t) { return t && t->defined(); }
// A 0-dimensional tensor on the device of `beside`.
at::Tensor ScalarTensor(const c10::Scalar& value, at::ScalarType dtype, const at::Tensor& beside);

// One call. Inputs are dense npu tensors.
class KernelCall {
 public:
  // The newest version of the operator `type` of ai.onnx, or of another domain.
  KernelCall(const char* type, const char* domain = "") : KernelCall(OperatorKernels::Of(type, domain)) {}
  explicit KernelCall(OperatorKernels& kernels) : kernels_(kernels) {}

  bool Takes(size_t input, at::ScalarType dtype) const;

  KernelCall& In(const at::Tensor& tensor);
  KernelCall& In(const at::Tensor& tensor, at::IntArrayRef shape);  // the same elements seen in another shape
  KernelCall& Absent();
  KernelCall& OnHost(const at::Tensor& tensor);   // a dense CPU tensor that the kernel reads on the host
  KernelCall& Host(std::vector<int64_t> values);  // a list that the kernel reads on the host
  KernelCall& HostScalar(int64_t value);
  KernelCall& HostScalar(double value);
  KernelCall& Set(const char* name, Attributes::Value value);  // `name` must outlive the call
  KernelCall& WriteOver(size_t output, size_t input);          // the output is the input, updated

  // Writes the outputs to `outs`, one or several, of any layout and dtype.
  void Into(at::TensorList outs);
  // Returns new tensors on the device of the first input, or of `beside` if there is none.
  std::vector<at::Tensor> Run(size_t outputs = 1, const at::Tensor* beside = nullptr);
  at::Tensor One() { return Run()[0]; }
  // Runs on `device`; `allocate` provides the memory of the outputs that are not written over inputs.
  void Run(size_t outputs, int device, const EagerContext::AllocateOutput& allocate);

 private:
  KernelCall& Push(const at::Tensor& tensor, at::IntArrayRef shape);
  bool Overlaps(const at::Tensor& out, size_t output) const;

  OperatorKernels& kernels_;
  NamedValues attributes_;
  c10::SmallVector<at::Tensor, 4> tensors_;  // of the inputs that are tensors, in order
  c10::SmallVector<std::pair<size_t, size_t>, 2> written_over_;
  std::vector<TensorView> inputs_;
  std::vector<std::vector<int64_t>> lists_;
};

}  // namespace npu::aten
