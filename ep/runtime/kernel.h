// The kernel interface. The onnxruntime adaptor and the eager adaptor implement OpContext, so that a kernel is written
// once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ep/runtime/attributes.h"
#include "ep/runtime/stream.h"
#include "ep/runtime/tensor.h"

namespace npu {

// Passed once, when a session creates the node's kernel or an eager call first uses these attributes.
struct KernelInfo {
  std::string op_type;
  std::string node_name;  // "" in eager calls
  int since_version = 1;  // of the node's operator
  size_t input_count = 0, output_count = 0;
  Attributes attributes;
  // The shapes of the inputs as the model declares them, with -1 for unknown dimensions; empty in eager calls.
  std::vector<std::optional<Shape>> input_shapes;
  std::vector<DType> input_dtypes;  // idem; kUndefined for an omitted input
  // The dtype to which a float32 matmul with a constant matrix may round its operands; sums stay float32.
  DType float32_products = DType::kFloat32;
  // If set, inputs that the operator's definition calls late are in device memory and read by the launch, so that a
  // replay sees their current values.
  bool late_inputs = false;
};

class OpContext {
 public:
  virtual ~OpContext() = default;

  virtual size_t input_count() const = 0;
  virtual size_t output_count() const = 0;
  // Not present: beyond input_count(), omitted, or passed as an empty constant for an optional input.
  virtual TensorView Input(size_t i) = 0;
  // False when the caller did not request output i; Output(i, …) then returns a view that is not present.
  virtual bool OutputRequested(size_t i) const = 0;
  // Allocates output i. For an in-place output the view may alias its input: compare the pointers.
  virtual TensorView Output(size_t i, DType dtype, const Shape& shape) = 0;
  // Scratch memory that is kept until the launched work is done. 64-byte aligned.
  virtual void* Workspace(size_t bytes) = 0;
  virtual Stream& stream() = 0;

  // Enqueues `f` in stream order. Capture views and values, never the context.
  template <class F>
  void Launch(const char* op, F&& f) {
    stream().Launch(op, Task(std::forward<F>(f)));
  }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  // Runs on the calling thread: check, infer, allocate, then Launch. Several calls may be in flight.
  virtual void Compute(OpContext& ctx) const = 0;
  // Offers a constant input before the first Compute. Returns true when the kernel keeps its own
  // packed form and no longer needs the input (Input(i) may then be not present). Runs to completion.
  virtual bool PrePack(size_t /*input*/, const TensorView& /*constant*/, Stream& /*stream*/) { return false; }
};

using KernelFactory = std::function<std::unique_ptr<Kernel>(const KernelInfo&)>;

}  // namespace npu
