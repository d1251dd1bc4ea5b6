#include "ep/provider/session_kernel.h"

#include <optional>
#include <utility>

#include "ep/provider/allocator.h"
#include "ep/runtime/run_to_end.h"

namespace npu::provider {

DType CheckedDType(const Signature& signature, ONNXTensorElementDataType type) {
  const DType dtype = DTypeOfElement(type);
  NPU_CHECK(dtype != DType::kUndefined, "[", signature.op, "] expected a tensor type the NPU knows, got element type ",
            static_cast<int>(type));
  return dtype;
}

namespace {

class Context final : public OpContext {
 public:
  Context(const Api& api, DeviceState& device, const Signature& signature, OrtKernelContext* context)
      : api_(api), device_(device), signature_(signature), context_(context) {
    void* handle = nullptr;
    api_.Check(api_.ort.KernelContext_GetGPUComputeStream(context_, &handle));
    run_stream_ = static_cast<Stream*>(handle);
  }
  // The blocks are freed in the stream's order, behind the work that was launched with them.
  ~Context() override {
    for (void* block : workspaces_) device_.device().allocator().Free(block);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  size_t input_count() const override { return signature_.input_count; }
  size_t output_count() const override { return signature_.output_count; }

  TensorView Input(size_t i) override {
    TensorView view;
    if (i >= signature_.input_count || signature_.input_absent[i] || signature_.input_packed[i]) return view;
    if (signature_.input_at[i] == Signature::kOwnConstant) return signature_.constants[i];
    const OrtValue* value = nullptr;
    api_.Check(api_.ort.KernelContext_GetInput(context_, signature_.input_at[i], &value));
    if (value == nullptr) return view;
    ONNXTensorElementDataType type;
    const int64_t* dims = nullptr;
    size_t rank = 0;
    // Python's None, fed as an input, arrives as a value without content.
    NPU_CHECK(api_.Succeeded(api_.ort.GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank)), "[",
              signature_.op, "] expected a tensor as input ", i, " ('", signature_.input_names[i], "'), got none");
    view.present = true;
    view.dtype = CheckedDType(signature_, type);
    view.shape = Shape(dims, rank);
    if (view.elements() != 0) {
      const void* data = nullptr;
      api_.Check(api_.ort.GetTensorData(value, &data));
      NPU_CHECK(data != nullptr, "[", signature_.op, "] expected memory behind input ", i, " ('",
                signature_.input_names[i], "') of shape ", view.shape,
                ", got address 0: bind the address of a tensor whose storage was not freed");
      view.data = const_cast<void*>(data);
    }
    return view;
  }

  bool OutputRequested(size_t i) const override {
    return i < signature_.output_count && signature_.output_requested[i];
  }

  TensorView Output(size_t i, DType dtype, const Shape& shape) override {
    TensorView view;
    if (!OutputRequested(i)) return view;
    OrtValue* value = nullptr;
    TakeAllocationError();
    OrtStatus* status =
        api_.ort.KernelContext_GetOutput(context_, signature_.output_at[i], shape.begin(), shape.rank(), &value);
    if (status != nullptr) {
      const std::string ort_message = api_.ort.GetErrorMessage(status);
      api_.ort.ReleaseStatus(status);
      const std::string why = TakeAllocationError();
      if (!why.empty()) Fail(ErrorCode::kOutOfMemory, "[", signature_.op, "] output ", i, ": ", why);
      Fail(ErrorCode::kInternal, "[", signature_.op, "] output ", i, " of shape ", shape, ": ", ort_message);
    }
    if (value == nullptr) return view;
    ONNXTensorElementDataType type;
    const int64_t* dims = nullptr;
    size_t rank = 0;
    api_.Check(api_.ort.GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
    // ORT sized the buffer by the type that the graph declares: writing another type could overrun it.
    const DType declared = CheckedDType(signature_, type);
    NPU_CHECK(declared == dtype, "[", signature_.op, "] output ", i, ": expected ", NameOf(dtype),
              ", the model declares ", NameOf(declared));
    view.present = true;
    view.dtype = dtype;
    view.shape = shape;
    if (view.elements() != 0) {
      api_.Check(api_.ort.GetTensorMutableData(value, &view.data));
      if (view.data == nullptr)
        Fail(ErrorCode::kOutOfMemory, "[", signature_.op, "] output ", i, " of shape ", shape, ": ",
             TakeAllocationError());
    }
    return view;
  }

  void* Workspace(size_t bytes) override {
    if (bytes == 0) return nullptr;
    workspaces_.reserve(workspaces_.size() + 1);
    workspaces_.push_back(device_.device().allocator().Allocate(bytes, stream()));
    return workspaces_.back();
  }

  Stream& stream() override {
    if (run_stream_ != nullptr) return *run_stream_;
    if (!own_) own_.emplace(device_);
    return **own_;
  }
  Stream* run_stream() const { return run_stream_; }

 private:
  const Api& api_;
  DeviceState& device_;
  const Signature& signature_;
  OrtKernelContext* context_;
  Stream* run_stream_ = nullptr;
  std::optional<DeviceState::OwnStream> own_;  // in place of the run's
  std::vector<void*> workspaces_;
};

}  // namespace

SessionKernel::SessionKernel(const Api& api, DeviceState& device, std::shared_ptr<SessionRuns> runs,
                             std::shared_ptr<SessionGraphs> graphs, bool host_memory, Signature signature,
                             std::unique_ptr<Kernel> kernel)
    : api_(api),
      device_(device),
      runs_(std::move(runs)),
      graphs_(std::move(graphs)),
      host_memory_(host_memory),
      signature_(std::move(signature)),
      kernel_(std::move(kernel)) {
  if (graphs_ != nullptr) graphs_->AddKernel();
}

// Work of a run that was not waited for may still use the kernel.
SessionKernel::~SessionKernel() {
  if (graphs_ != nullptr) graphs_->RemoveKernel();
  runs_->ReleaseAfterRuns([kernel = std::move(kernel_)] {});
}

void SessionKernel::Compute(OrtKernelContext* ort_context) const {
  Named([&] {
    if (graphs_ != nullptr) graphs_->BeginPart();
    Context context(api_, device_, signature_, ort_context);
    const bool own = context.run_stream() != nullptr && runs_->Enter(*context.run_stream());
    // Without a stream, and with values in host memory, ORT expects the results when Compute returns.
    if (!own || host_memory_) {
      RunToEnd(context.stream(), [&] { kernel_->Compute(context); });
    } else {
      kernel_->Compute(context);
    }
    if (graphs_ != nullptr) graphs_->EndPart();
  });
}

}  // namespace npu::provider
