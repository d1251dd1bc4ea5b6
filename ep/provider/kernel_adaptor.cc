#include "ep/provider/kernel_adaptor.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ep/provider/allocator.h"
#include "ep/provider/copy.h"
#include "ep/provider/node_view.h"
#include "ep/runtime/run_to_end.h"

namespace npu::provider {
namespace {

// A node's arguments as known when its kernel is created; Compute only reads it.
struct Signature {
  std::string op;  // "Add": what error messages start with
  size_t input_count = 0, output_count = 0;
  std::vector<std::string> input_names;
  std::vector<bool> input_absent;      // an empty constant for an optional input
  std::vector<bool> input_packed;      // the kernel keeps its own packed form
  std::vector<bool> output_requested;  // the node names the output
};

DType CheckedDType(const Signature& signature, ONNXTensorElementDataType type) {
  const DType dtype = DTypeOfElement(type);
  NPU_CHECK(dtype != DType::kUndefined, "[", signature.op, "] expected a tensor type the NPU knows, got element type ",
            static_cast<int>(type));
  return dtype;
}

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
    const OrtValue* value = nullptr;
    api_.Check(api_.ort.KernelContext_GetInput(context_, i, &value));
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
    OrtStatus* status = api_.ort.KernelContext_GetOutput(context_, i, shape.begin(), shape.rank(), &value);
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

  Stream& stream() override { return run_stream_ != nullptr ? *run_stream_ : device_.host_stream(); }
  Stream* run_stream() const { return run_stream_; }

 private:
  const Api& api_;
  DeviceState& device_;
  const Signature& signature_;
  OrtKernelContext* context_;
  Stream* run_stream_ = nullptr;
  std::vector<void*> workspaces_;
};

Signature ReadSignature(const Api& api, const OpDef& def, const OrtKernelInfo* info) {
  Signature out;
  out.op = def.type;
  api.Check(api.ort.KernelInfo_GetInputCount(info, &out.input_count));
  api.Check(api.ort.KernelInfo_GetOutputCount(info, &out.output_count));
  out.input_packed.assign(out.input_count, false);
  for (size_t i = 0; i < out.input_count; ++i) {
    const ArgDef* arg = ArgAt(def.inputs, i);
    bool absent = false;
    if (arg != nullptr && arg->optional && def.domain == "npu") {
      int constant = 0;
      const OrtValue* value = nullptr;
      api.Check(api.ort.KernelInfoGetConstantInput_tensor(info, i, &constant, &value));
      size_t bytes = 0;
      if (constant != 0) api.Check(api.ort.GetTensorSizeInBytes(value, &bytes));
      absent = constant != 0 && bytes == 0;
    }
    out.input_absent.push_back(absent);
    out.input_names.push_back(ReadString(
        api, [&](char* text, size_t* size) { return api.ort.KernelInfo_GetInputName(info, i, text, size); }));
  }
  for (size_t i = 0; i < out.output_count; ++i) {
    out.output_requested.push_back(!ReadString(api, [&](char* text, size_t* size) {
                                      return api.ort.KernelInfo_GetOutputName(info, i, text, size);
                                    }).empty());
  }
  return out;
}

// As far as the model tells; see KernelInfo.
void ReadInputTypes(const Api& api, const Signature& signature, const OrtKernelInfo* info, KernelInfo* out) {
  out->input_shapes.resize(signature.input_count);
  out->input_dtypes.resize(signature.input_count, DType::kUndefined);
  for (size_t i = 0; i < signature.input_count; ++i) {
    if (signature.input_names[i].empty()) continue;
    OrtTypeInfo* type = nullptr;
    api.Check(api.ort.KernelInfo_GetInputTypeInfo(info, i, &type));
    const auto release = [&](OrtTypeInfo* t) { api.ort.ReleaseTypeInfo(t); };
    const std::unique_ptr<OrtTypeInfo, decltype(release)> owner(type, release);
    const OrtTensorTypeAndShapeInfo* tensor = nullptr;
    api.Check(api.ort.CastTypeInfoToTensorInfo(type, &tensor));
    if (tensor == nullptr) continue;
    ONNXTensorElementDataType element;
    api.Check(api.ort.GetTensorElementType(tensor, &element));
    if (!signature.input_absent[i]) out->input_dtypes[i] = DTypeOfElement(element);
    if (!api.ort.TensorTypeAndShape_HasShape(tensor)) continue;
    size_t rank = 0;
    api.Check(api.ort.GetDimensionsCount(tensor, &rank));
    std::vector<int64_t> dims(rank);
    api.Check(api.ort.GetDimensions(tensor, dims.data(), rank));
    if (rank <= Shape::kMaxRank) out->input_shapes[i] = Shape(dims);
  }
}

class KernelAdaptor final : public OrtKernelImpl {
 public:
  KernelAdaptor(const Api& api, DeviceState& device, const Options& options, std::shared_ptr<SharedConstants> constants,
                std::shared_ptr<SessionRuns> runs, std::shared_ptr<SessionGraphs> graphs, const OpDef& def,
                const OrtKernelInfo* info)
      : OrtKernelImpl{},
        api_(api),
        device_(device),
        constants_(std::move(constants)),
        runs_(std::move(runs)),
        graphs_(std::move(graphs)),
        host_memory_(options.host_memory),
        signature_(ReadSignature(api, def, info)) {
    ort_version_supported = ORT_API_VERSION;
    Compute = &ComputeImpl;
    Release = [](OrtKernelImpl* self) noexcept { delete static_cast<KernelAdaptor*>(self); };
    PrePackWeight = &PrePackImpl;

    KernelInfo kernel_info;
    kernel_info.op_type = def.type;
    kernel_info.node_name =
        ReadString(api, [&](char* text, size_t* size) { return api.ort.KernelInfo_GetNodeName(info, text, size); });
    api.Check(api.ort.KernelInfo_GetOperatorSinceVersion(info, &kernel_info.since_version));
    kernel_info.input_count = signature_.input_count;
    kernel_info.output_count = signature_.output_count;
    kernel_info.attributes = ReadAttributes(api, info, def);
    ReadInputTypes(api, signature_, info, &kernel_info);
    kernel_info.float32_products = options.float32_products;
    kernel_info.late_inputs = options.graphs;
    kernel_ = def.make(kernel_info);
    for (size_t i = 0; i < signature_.input_count; ++i) constants_->AddReader(signature_.input_names[i], *kernel_, i);
    if (graphs_ != nullptr) graphs_->AddKernel();
  }

 private:
  // Work of a run that was not waited for may still use the kernel.
  ~KernelAdaptor() {
    if (graphs_ != nullptr) graphs_->RemoveKernel();
    constants_->RemoveReader(*kernel_);
    runs_->ReleaseAfterRuns([kernel = std::move(kernel_)] {});
  }

  static OrtStatus* ORT_API_CALL ComputeImpl(OrtKernelImpl* self, OrtKernelContext* ort_context) noexcept {
    const auto& me = *static_cast<const KernelAdaptor*>(self);
    return Guard(me.api_.ort, [&] {
      me.Named([&] {
        if (me.graphs_ != nullptr) me.graphs_->BeginPart();
        Context context(me.api_, me.device_, me.signature_, ort_context);
        if (context.run_stream() != nullptr) me.runs_->Enter(*context.run_stream());
        // Without a stream, and with values in host memory, ORT expects the results when Compute returns.
        if (context.run_stream() == nullptr || me.host_memory_) {
          RunToEnd(context.stream(), [&] { me.kernel_->Compute(context); });
        } else {
          me.kernel_->Compute(context);
        }
        if (me.graphs_ != nullptr) me.graphs_->EndPart();
      });
    });
  }

  static OrtStatus* ORT_API_CALL PrePackImpl(OrtKernelImpl* self, const OrtValue* tensor, int input,
                                             OrtAllocator* /*allocator*/, OrtSharedPrePackedWeightCache* /*cache*/,
                                             bool* is_packed) noexcept {
    auto& me = *static_cast<KernelAdaptor*>(self);
    *is_packed = false;
    return Guard(me.api_.ort, [&] { me.Named([&] { *is_packed = me.PrePack(tensor, static_cast<size_t>(input)); }); });
  }

  bool PrePack(const OrtValue* tensor, size_t input) {
    if (input >= signature_.input_count || signature_.input_absent[input]) return false;
    ONNXTensorElementDataType type;
    const int64_t* dims = nullptr;
    size_t rank = 0;
    api_.Check(api_.ort.GetTensorElementTypeAndShapeDataReference(tensor, &type, &dims, &rank));
    TensorView view;
    view.present = true;
    view.dtype = CheckedDType(signature_, type);
    view.shape = Shape(dims, rank);
    if (view.elements() != 0) {
      const void* data = nullptr;
      api_.Check(api_.ort.GetTensorData(tensor, &data));
      view.data = const_cast<void*>(data);
    }
    bool packed = false;
    RunToEnd(device_.host_stream(), [&] {
      const bool shared = constants_->Share(signature_.input_names[input], *kernel_, input, view);
      packed = !shared && kernel_->PrePack(input, view, device_.host_stream());
    });
    signature_.input_packed[input] = packed;
    return packed;
  }

  // Every message starts with the operator; kernels write it themselves, but the runtime does not know it.
  template <class F>
  void Named(F&& f) const {
    try {
      f();
    } catch (const Error& error) {
      if (*error.what() == '[') throw;
      throw Error(error.code(), "[" + signature_.op + "] " + error.what());
    }
  }

  const Api& api_;
  DeviceState& device_;
  std::shared_ptr<SharedConstants> constants_;
  std::shared_ptr<SessionRuns> runs_;
  std::shared_ptr<SessionGraphs> graphs_;
  const bool host_memory_;  // see Options
  Signature signature_;
  std::shared_ptr<Kernel> kernel_;
};

class MemcpyKernel final : public OrtKernelImpl {
 public:
  MemcpyKernel(const Api& api, DeviceState& device, std::shared_ptr<SessionRuns> runs, bool to_host)
      : OrtKernelImpl{}, api_(api), device_(device), runs_(std::move(runs)), to_host_(to_host) {
    ort_version_supported = ORT_API_VERSION;
    Compute = [](OrtKernelImpl* self, OrtKernelContext* context) noexcept {
      const auto& me = *static_cast<const MemcpyKernel*>(self);
      return Guard(me.api_.ort, [&] { me.Copy(context); });
    };
    Release = [](OrtKernelImpl* self) noexcept { delete static_cast<MemcpyKernel*>(self); };
  }

 private:
  void Copy(OrtKernelContext* context) const {
    const OrtValue* input = nullptr;
    api_.Check(api_.ort.KernelContext_GetInput(context, 0, &input));
    NPU_CHECK(input != nullptr, "[Memcpy] expected an input, got none");
    const TensorType type = CopiedType(api_, input);
    OrtValue* output = nullptr;
    TakeAllocationError();
    api_.Check(api_.ort.KernelContext_GetOutput(context, 0, type.dims, type.rank, &output));
    void* stream = nullptr;
    api_.Check(api_.ort.KernelContext_GetGPUComputeStream(context, &stream));
    if (stream != nullptr) runs_->Enter(*static_cast<Stream*>(stream));
    CopyTensor(api_, device_, static_cast<Stream*>(stream), input, to_host_ ? Place::kDevice : Place::kHost, output,
               to_host_ ? Place::kHost : Place::kDevice);
  }

  const Api& api_;
  DeviceState& device_;
  const std::shared_ptr<SessionRuns> runs_;
  const bool to_host_;
};

}  // namespace

OrtKernelImpl* NewKernel(const Api& api, DeviceState& device, const Options& options,
                         std::shared_ptr<SharedConstants> constants, std::shared_ptr<SessionRuns> runs,
                         std::shared_ptr<SessionGraphs> graphs, const OpDef& def, const OrtKernelInfo* info) {
  return new KernelAdaptor(api, device, options, std::move(constants), std::move(runs), std::move(graphs), def, info);
}

OrtKernelImpl* NewMemcpyKernel(const Api& api, DeviceState& device, std::shared_ptr<SessionRuns> runs, bool to_host) {
  return new MemcpyKernel(api, device, std::move(runs), to_host);
}

}  // namespace npu::provider
