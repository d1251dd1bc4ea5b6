#include "ep/provider/fusion/fused_kernel.h"

#include <cstring>
#include <utility>

#include "ep/provider/copy.h"
#include "ep/provider/fusion/plan.h"
#include "ep/provider/session_kernel.h"
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

  TensorView Load(const ValueView& constant, Place place) {
    TensorView view;
    view.present = true;
    view.dtype = constant.dtype;
    view.shape = Shape(constant.shape);
    if (view.elements() == 0) return view;
    const void* data = nullptr;
    api_.Check(api_.ort.GetTensorData(ConstantValue(api_, constant), &data));
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
  // Frees what Load returned last, in device memory.
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

  // Each once; the kernel may keep a packed form instead.
  void LoadConstants(const Fusion& fusion, bool late_inputs) {
    Signature& signature = kernel_.signature();
    for (size_t i = 0; i < signature.input_count; ++i) {
      if (signature.input_absent[i] || signature.input_at[i] != Signature::kOwnConstant) continue;
      const ArgDef* arg = ArgAt(fusion.def->inputs, i);
      const bool on_host = arg != nullptr && ReadOnHost(*arg, late_inputs);
      const TensorView view = constants_.Load(fusion.fused.inputs[i], on_host ? Place::kHost : Place::kDevice);
      bool packed = false;
      RunToEnd(device_.host_stream(), [&] { packed = kernel_.kernel().PrePack(i, view, device_.host_stream()); });
      if (packed && !on_host && view.data != nullptr) constants_.DropLast();
      signature.input_packed[i] = packed;
      if (!packed) signature.constants[i] = view;
    }
  }

  const Api& api_;
  DeviceState& device_;
  FusedConstants constants_;  // outlive the kernel
  SessionKernel kernel_;
};

}  // namespace

OrtNodeComputeInfo* NewFusedKernel(const Api& api, DeviceState& device, const Options& options,
                                   std::shared_ptr<SessionRuns> runs, std::shared_ptr<SessionGraphs> graphs,
                                   const OrtGraph* graph, const OrtNode* node) {
  std::vector<GraphNode> nodes;
  for (const OrtNode* inner : NodesOf(api, graph)) nodes.push_back(ReadNode(api, inner));
  for (const Fusion& fusion : PlanFusions(api, nodes, options.graphs)) {
    if (fusion.fused.nodes.size() == nodes.size())
      return new FusedKernel(api, device, options, std::move(runs), std::move(graphs), fusion, node);
  }
  Fail(ErrorCode::kInternal, "expected a group of nodes that a fusion rule recognises, got ", nodes.size(),
       " others; set the provider option fusion to 0");
}

void ReleaseFusedKernel(OrtNodeComputeInfo* info) noexcept { delete static_cast<FusedKernel*>(info); }

}  // namespace npu::provider
