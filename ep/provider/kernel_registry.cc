#include "ep/provider/kernel_registry.h"

#include <utility>

#include "ep/provider/ep.h"
#include "ep/provider/kernel_adaptor.h"
#include "ep/provider/node_view.h"

namespace npu::provider {
namespace {

using AddAliases = decltype(OrtEpApi::KernelDefBuilder_AddInputOutputAliases);

void DeclareAliases(const Api& api, OrtKernelDefBuilder* builder, AddAliases add,
                    const std::vector<std::pair<int, int>>& pairs) {
  std::vector<int> inputs, outputs;
  for (const auto& [input, output] : pairs) {
    inputs.push_back(input);
    outputs.push_back(output);
  }
  if (!pairs.empty()) api.Check(add(builder, inputs.data(), outputs.data(), pairs.size()));
}

// ORT places arguments individually, and a variadic list has no fixed length. ORT copies those beyond this number.
constexpr size_t kMostVariadic = 64;

size_t CountOf(const std::vector<ArgDef>& args) {
  return args.empty() || !args.back().variadic ? args.size() : args.size() + kMostVariadic;
}

void PlaceOnHost(const Api& api, OrtKernelDefBuilder* builder, const OpDef& def) {
  for (size_t i = 0; i < CountOf(def.inputs); ++i)
    api.Check(api.ep.KernelDefBuilder_SetInputMemType(builder, i, OrtMemTypeCPUInput));
  for (size_t i = 0; i < CountOf(def.outputs); ++i)
    api.Check(api.ep.KernelDefBuilder_SetOutputMemType(builder, i, OrtMemTypeCPUOutput));
}

void PlaceByDefinition(const Api& api, OrtKernelDefBuilder* builder, const OpDef& def, bool late_inputs) {
  for (size_t i = 0; i < def.inputs.size(); ++i) {
    if (!ReadOnHost(def.inputs[i], late_inputs)) continue;
    NPU_CHECK(!def.inputs[i].variadic, "[", def.type, "] expected variadic inputs in device memory");
    api.Check(api.ep.KernelDefBuilder_SetInputMemType(builder, i, OrtMemTypeCPUInput));
  }
  for (size_t i = 0; i < def.outputs.size(); ++i) {
    if (def.outputs[i].cpu) api.Check(api.ep.KernelDefBuilder_SetOutputMemType(builder, i, OrtMemTypeCPUOutput));
  }
}

void DeclareOperator(const Api& api, OrtKernelDefBuilder* builder, const OpDef& def, ValuePlacement placement) {
  if (placement == ValuePlacement::kHost) {
    PlaceOnHost(api, builder, def);
  } else {
    PlaceByDefinition(api, builder, def, placement == ValuePlacement::kReplay);
  }
  // Updating an input in place is offered to ORT but not forced: ORT's unconditional alias would also pass a buffer
  // that other nodes still read.
  std::vector<std::pair<int, int>> in_place = def.may_alias;
  in_place.insert(in_place.end(), def.mutable_alias.begin(), def.mutable_alias.end());
  DeclareAliases(api, builder, api.ep.KernelDefBuilder_AddInputOutputMutableAliases, in_place);
  DeclareAliases(api, builder, api.ep.KernelDefBuilder_AddInputOutputAliases, def.view_alias);
}

}  // namespace

KernelRegistry::KernelRegistry(const Api& api, const char* ep_name, ValuePlacement placement)
    : api_(api), ep_name_(ep_name), placement_(placement), registry_(nullptr, api.ep.ReleaseKernelRegistry) {
  OrtKernelRegistry* raw = nullptr;
  api_.Check(api_.ep.CreateKernelRegistry(&raw));
  registry_.reset(raw);
  for (const OpDef* def : OpRegistry::Instance().All()) {
    Register(def->domain.c_str(), def->type.c_str(), def->since, def->until, def, false);
  }
  for (const ControlFlow& flow : ControlFlows()) {
    Register("", flow.def.type.c_str(), flow.def.since, flow.def.until, &flow.def, false, flow.make);
  }
  Register("", "MemcpyFromHost", 1, 1, nullptr, false);
  Register("", "MemcpyToHost", 1, 1, nullptr, true);
}

void KernelRegistry::Register(const char* domain, const char* type, int since, int until, const OpDef* def,
                              bool to_host, ControlFlowFactory control_flow) {
  OrtKernelDefBuilder* raw_builder = nullptr;
  api_.Check(api_.ep.CreateKernelDefBuilder(&raw_builder));
  auto builder = Own(raw_builder, api_.ep.ReleaseKernelDefBuilder);
  api_.Check(api_.ep.KernelDefBuilder_SetOperatorType(builder.get(), type));
  api_.Check(api_.ep.KernelDefBuilder_SetDomain(builder.get(), domain));
  api_.Check(api_.ep.KernelDefBuilder_SetSinceVersion(builder.get(), since, until));
  api_.Check(api_.ep.KernelDefBuilder_SetExecutionProvider(builder.get(), ep_name_));
  if (def != nullptr) {
    // No type constraints: ORT looks them up by the schema's names, which differ between a model-local function, a
    // custom operator and an ONNX schema. Types are checked when a node is claimed.
    DeclareOperator(api_, builder.get(), *def, placement_);
  } else if (to_host) {
    api_.Check(api_.ep.KernelDefBuilder_SetOutputMemType(builder.get(), 0, OrtMemTypeCPUOutput));
  } else {
    api_.Check(api_.ep.KernelDefBuilder_SetInputMemType(builder.get(), 0, OrtMemTypeCPUInput));
  }
  OrtKernelDef* raw_def = nullptr;
  api_.Check(api_.ep.KernelDefBuilder_Build(builder.get(), &raw_def));
  auto kernel_def = Own(raw_def, api_.ep.ReleaseKernelDef);
  entries_.push_back(std::make_unique<Entry>(Entry{&api_, def, to_host, control_flow}));
  api_.Check(api_.ep.KernelRegistry_AddKernel(registry_.get(), kernel_def.get(), &Create, entries_.back().get()));
}

OrtStatus* ORT_API_CALL KernelRegistry::Create(void* state, const OrtKernelInfo* info, OrtKernelImpl** out) noexcept {
  const auto& entry = *static_cast<const Entry*>(state);
  *out = nullptr;
  return Guard(entry.api->ort, [&] {
    const OrtEp* ep = nullptr;
    entry.api->Check(entry.api->ep.KernelInfo_GetEp(info, &ep));
    DeviceState& device = DeviceOf(ep);
    if (entry.control_flow != nullptr) {
      *out = entry.control_flow(*entry.api, device, info);
      return;
    }
    *out = entry.def != nullptr ? NewKernel(*entry.api, device, OptionsOf(ep), ConstantsOf(ep), RunsOf(ep),
                                            GraphsOf(ep), *entry.def, info)
                                : NewMemcpyKernel(*entry.api, device, RunsOf(ep), entry.to_host);
  });
}

}  // namespace npu::provider
