#include "ep/provider/kernel_adaptor.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ep/provider/allocator.h"
#include "ep/provider/copy.h"
#include "ep/provider/node_view.h"
#include "ep/provider/session_kernel.h"
#include "ep/runtime/run_to_end.h"

namespace npu::provider {
namespace {

Signature ReadSignature(const Api& api, const OpDef& def, const OrtKernelInfo* info) {
  Signature out;
  out.op = def.type;
  api.Check(api.ort.KernelInfo_GetInputCount(info, &out.input_count));
  api.Check(api.ort.KernelInfo_GetOutputCount(info, &out.output_count));
  out.input_packed.assign(out.input_count, false);
  out.constants.resize(out.input_count);
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
    out.input_at.push_back(i);
    out.input_names.push_back(ReadString(
        api, [&](char* text, size_t* size) { return api.ort.KernelInfo_GetInputName(info, i, text, size); }));
  }
  for (size_t i = 0; i < out.output_count; ++i) {
    out.output_at.push_back(i);
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

std::unique_ptr<Kernel> MakeKernelOf(const Api& api, const Options& options, const OpDef& def,
                                     const Signature& signature, const OrtKernelInfo* info) {
  KernelInfo kernel_info;
  kernel_info.op_type = def.type;
  kernel_info.node_name =
      ReadString(api, [&](char* text, size_t* size) { return api.ort.KernelInfo_GetNodeName(info, text, size); });
  api.Check(api.ort.KernelInfo_GetOperatorSinceVersion(info, &kernel_info.since_version));
  kernel_info.input_count = signature.input_count;
  kernel_info.output_count = signature.output_count;
  kernel_info.attributes = ReadAttributes(api, info, def);
  ReadInputTypes(api, signature, info, &kernel_info);
  kernel_info.float32_products = options.float32_products;
  kernel_info.late_inputs = options.graphs;
  return def.make(kernel_info);
}

class KernelAdaptor final : public OrtKernelImpl {
 public:
  KernelAdaptor(const Api& api, DeviceState& device, std::shared_ptr<SharedConstants> constants,
                std::unique_ptr<SessionKernel> kernel)
      : OrtKernelImpl{}, api_(api), device_(device), constants_(std::move(constants)), kernel_(std::move(kernel)) {
    ort_version_supported = ORT_API_VERSION;
    Compute = [](OrtKernelImpl* self, OrtKernelContext* context) noexcept {
      const auto& me = *static_cast<const KernelAdaptor*>(self);
      return Guard(me.api_.ort, [&] { me.kernel_->Compute(context); });
    };
    Release = [](OrtKernelImpl* self) noexcept { delete static_cast<KernelAdaptor*>(self); };
    PrePackWeight = &PrePackImpl;
    const Signature& signature = kernel_->signature();
    for (size_t i = 0; i < signature.input_count; ++i)
      constants_->AddReader(signature.input_names[i], kernel_->kernel(), i);
  }

 private:
  ~KernelAdaptor() { constants_->RemoveReader(kernel_->kernel()); }

  static OrtStatus* ORT_API_CALL PrePackImpl(OrtKernelImpl* self, const OrtValue* tensor, int input,
                                             OrtAllocator* /*allocator*/, OrtSharedPrePackedWeightCache* /*cache*/,
                                             bool* is_packed) noexcept {
    auto& me = *static_cast<KernelAdaptor*>(self);
    *is_packed = false;
    return Guard(me.api_.ort,
                 [&] { me.kernel_->Named([&] { *is_packed = me.PrePack(tensor, static_cast<size_t>(input)); }); });
  }

  bool PrePack(const OrtValue* tensor, size_t input) {
    Signature& signature = kernel_->signature();
    if (input >= signature.input_count || signature.input_absent[input]) return false;
    ONNXTensorElementDataType type;
    const int64_t* dims = nullptr;
    size_t rank = 0;
    api_.Check(api_.ort.GetTensorElementTypeAndShapeDataReference(tensor, &type, &dims, &rank));
    TensorView view;
    view.present = true;
    view.dtype = CheckedDType(signature, type);
    view.shape = Shape(dims, rank);
    if (view.elements() != 0) {
      const void* data = nullptr;
      api_.Check(api_.ort.GetTensorData(tensor, &data));
      view.data = const_cast<void*>(data);
    }
    bool packed = false;
    const DeviceState::OwnStream own(device_);
    RunToEnd(*own, [&] {
      const bool shared = constants_->Share(signature.input_names[input], kernel_->kernel(), input, view, *own);
      packed = !shared && kernel_->kernel().PrePack(input, view, *own);
    });
    signature.input_packed[input] = packed;
    return packed;
  }

  const Api& api_;
  DeviceState& device_;
  const std::shared_ptr<SharedConstants> constants_;
  const std::unique_ptr<SessionKernel> kernel_;
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
    auto* const on = static_cast<Stream*>(stream);
    const bool own = on == nullptr || runs_->Enter(*on);
    CopyTensor(api_, device_, on, input, to_host_ ? Place::kDevice : Place::kHost, output,
               to_host_ ? Place::kHost : Place::kDevice);
    if (!own) on->Synchronize();
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
  Signature signature = ReadSignature(api, def, info);
  std::unique_ptr<Kernel> kernel = MakeKernelOf(api, options, def, signature, info);
  return new KernelAdaptor(
      api, device, std::move(constants),
      std::make_unique<SessionKernel>(api, device, std::move(runs), std::move(graphs), options.host_memory,
                                      std::move(signature), std::move(kernel)));
}

OrtKernelImpl* NewMemcpyKernel(const Api& api, DeviceState& device, std::shared_ptr<SessionRuns> runs, bool to_host) {
  return new MemcpyKernel(api, device, std::move(runs), to_host);
}

}  // namespace npu::provider
