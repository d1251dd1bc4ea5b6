#include "ep/provider/fusion/fused_kernel.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "ep/provider/copy.h"
#include "ep/provider/session_kernel.h"
#include "ep/runtime/file_pages.h"
#include "ep/runtime/run_to_end.h"

namespace npu::provider {
namespace {

// Onnxruntime does not load the constants of fused nodes.
class FusedConstants {
 public:
  FusedConstants(const Api& api, DeviceState& device) : api_(api), device_(device) {}
  ~FusedConstants() {
    for (void* block : blocks_) device_.Free(block);
  }
  FusedConstants(const FusedConstants&) = delete;
  FusedConstants& operator=(const FusedConstants&) = delete;

  // In memory of the model, as long as that is there.
  TensorView View(const ValueView& constant) const {
    TensorView view;
    view.present = true;
    view.dtype = constant.dtype;
    view.shape = Shape(constant.shape);
    if (view.elements() == 0) return view;
    const void* data = nullptr;
    api_.Check(api_.ort.GetTensorData(ConstantValue(api_, constant), &data));
    view.data = const_cast<void*>(data);
    return view;
  }
  // The same in memory of its own.
  TensorView Copy(TensorView view, Place place) {
    if (view.data == nullptr) return view;
    const void* data = view.data;
    if (place == Place::kHost) {
      on_host_.push_back(std::make_unique<std::byte[]>(view.bytes()));
      view.data = on_host_.back().get();
      std::memcpy(view.data, data, view.bytes());
    } else {
      blocks_.reserve(blocks_.size() + 1);
      blocks_.push_back(device_.Allocate(view.bytes(), nullptr));
      view.data = blocks_.back();
      CopyBytes(device_, nullptr, view.data, Place::kDevice, data, Place::kHost, view.bytes());
    }
    return view;
  }
  // Frees what Copy returned last, in device memory.
  void DropLast() {
    device_.Free(blocks_.back());
    blocks_.pop_back();
  }

 private:
  const Api& api_;
  DeviceState& device_;
  std::vector<void*> blocks_;
  std::vector<std::unique_ptr<std::byte[]>> on_host_;
};

std::vector<std::string> NamesOf(const Api& api, const OrtNode* node, decltype(OrtApi::Node_GetNumInputs) count,
                                 decltype(OrtApi::Node_GetInputs) get) {
  size_t n = 0;
  api.Check(count(node, &n));
  std::vector<const OrtValueInfo*> infos(n);
  if (n != 0) api.Check(get(node, infos.data(), n));
  std::vector<std::string> names;
  for (const OrtValueInfo* info : infos) {
    const char* name = nullptr;
    api.Check(api.ort.GetValueInfoName(info, &name));
    names.emplace_back(name);
  }
  return names;
}

size_t PositionOf(const std::string& name, const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return i;
  Fail(ErrorCode::kInternal, "expected value '", name, "' among those of a fused node, got none");
}

// Where the operator finds its arguments; constants are added later.
Signature SignatureOf(const Api& api, const Fusion& fusion, const OrtNode* node) {
  const std::vector<std::string> passed = NamesOf(api, node, api.ort.Node_GetNumInputs, api.ort.Node_GetInputs);
  const std::vector<std::string> returned = NamesOf(api, node, api.ort.Node_GetNumOutputs, api.ort.Node_GetOutputs);
  Signature out;
  out.op = fusion.fused.type;
  out.input_count = fusion.fused.inputs.size();
  out.output_count = fusion.fused.outputs.size();
  out.input_packed.assign(out.input_count, false);
  out.constants.resize(out.input_count);
  for (const ValueView& input : fusion.fused.inputs) {
    out.input_names.push_back(input.name);
    out.input_absent.push_back(input.info == nullptr);
    const bool own = input.info == nullptr || input.constant;
    out.input_at.push_back(own ? Signature::kOwnConstant : PositionOf(input.name, passed));
  }
  for (const ValueView& output : fusion.fused.outputs) {
    out.output_requested.push_back(true);
    out.output_at.push_back(PositionOf(output.name, returned));
  }
  return out;
}

class FusedKernel final : public OrtNodeComputeInfo {
 public:
  FusedKernel(const Api& api, DeviceState& device, const Options& options, std::shared_ptr<SessionRuns> runs,
              std::shared_ptr<SessionGraphs> graphs, const Fusion& fusion, const OrtNode* node)
      : OrtNodeComputeInfo{},
        api_(api),
        device_(device),
        constants_(api, device),
        kernel_(api, device, std::move(runs), std::move(graphs), options.host_memory, SignatureOf(api, fusion, node),
                MakeFusedKernel(fusion, options, NameOf(api, node))) {
    ort_version_supported = ORT_API_VERSION;
    CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) noexcept -> OrtStatus* {
      *state = self;
      return nullptr;
    };
    Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) noexcept {
      const auto& me = *static_cast<const FusedKernel*>(self);
      return Guard(me.api_.ort, [&] { me.kernel_.Compute(context); });
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
    kernel_.Named([&] { LoadConstants(fusion, options.graphs); });
  }

 private:
  static std::string NameOf(const Api& api, const OrtNode* node) {
    const char* name = nullptr;
    api.Check(api.ort.Node_GetName(node, &name));
    return name;
  }

  // Whether kernels read a constant where the model has it. A file's offsets are any.
  bool IsReachable(const TensorView& constant) const {
    return device_.device().backend().KernelsReachHostMemory() &&
           reinterpret_cast<uintptr_t>(constant.data) % alignof(std::max_align_t) == 0;
  }

  // Each once; the kernel may keep a packed form instead.
  void LoadConstants(const Fusion& fusion, bool late_inputs) {
    Signature& signature = kernel_.signature();
    for (size_t i = 0; i < signature.input_count; ++i) {
      if (signature.input_absent[i] || signature.input_at[i] != Signature::kOwnConstant) continue;
      const ArgDef* arg = ArgAt(fusion.def->inputs, i);
      const bool on_host = arg != nullptr && ReadOnHost(*arg, late_inputs);
      const Place place = on_host ? Place::kHost : Place::kDevice;
      const TensorView given = constants_.View(fusion.fused.inputs[i]);
      // What a kernel packs it reads once: where it can, from the model.
      const bool in_place = on_host || IsReachable(given);
      const TensorView offered = in_place ? given : constants_.Copy(given, place);
      bool packed = false;
      {
        const DeviceState::OwnStream own(device_);
        RunToEnd(*own, [&] { packed = kernel_.kernel().PrePack(i, offered, *own); });
      }
      signature.input_packed[i] = packed;
      if (!packed) signature.constants[i] = in_place ? constants_.Copy(given, place) : offered;
      if (packed && !in_place && offered.data != nullptr) constants_.DropLast();
      if (packed && in_place) ReleaseFilePages(given.data, given.bytes());
    }
  }

  const Api& api_;
  DeviceState& device_;
  FusedConstants constants_;  // outlive the kernel
  SessionKernel kernel_;
};

}  // namespace

std::unique_ptr<Kernel> MakeFusedKernel(const Fusion& fusion, const Options& options, const std::string& name) {
  KernelInfo info;
  info.op_type = fusion.fused.type;
  info.node_name = name;
  info.since_version = fusion.fused.version;
  info.input_count = fusion.fused.inputs.size();
  info.output_count = fusion.fused.outputs.size();
  info.attributes = fusion.fused.attributes;
  for (const ValueView& input : fusion.fused.inputs) {
    info.input_dtypes.push_back(input.info == nullptr ? DType::kUndefined : input.dtype);
    info.input_shapes.push_back(input.rank_known ? std::optional(Shape(input.shape)) : std::nullopt);
  }
  info.float32_products = options.float32_products;
  info.late_inputs = options.graphs;
  return fusion.def->make(info);
}

OrtNodeComputeInfo* NewFusedKernel(const Api& api, DeviceState& device, const Options& options,
                                   std::shared_ptr<SessionRuns> runs, std::shared_ptr<SessionGraphs> graphs,
                                   const Fusion& fusion, const OrtNode* node) {
  return new FusedKernel(api, device, options, std::move(runs), std::move(graphs), fusion, node);
}

void ReleaseFusedKernel(OrtNodeComputeInfo* info) noexcept { delete static_cast<FusedKernel*>(info); }

}  // namespace npu::provider
