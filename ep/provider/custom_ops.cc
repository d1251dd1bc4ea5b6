#include "ep/provider/custom_ops.h"

namespace npu::provider {
namespace {

OrtCustomOpInputOutputCharacteristic SchemaPresence(const ArgDef& arg) {
  if (arg.variadic) return INPUT_OUTPUT_VARIADIC;
  return arg.optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

}  // namespace

// ORT types an output by the first operator of a name whose inputs fit. So one operator is declared per typing.
struct CustomOpDomain::Op : OrtCustomOp {
  const OpDef& def;
  const Typing& typing;

  Op(const OpDef& definition, const Typing& types) : OrtCustomOp{}, def(definition), typing(types) {
    version = ORT_API_VERSION;
    GetName = [](const OrtCustomOp* self) noexcept { return Of(self).def.type.c_str(); };
    // The CPU provider's: naming ours would put this operator's own kernel before the registry's.
    GetExecutionProviderType = [](const OrtCustomOp*) noexcept -> const char* { return nullptr; };
    GetInputTypeCount = [](const OrtCustomOp* self) noexcept { return Of(self).def.inputs.size(); };
    GetInputType = [](const OrtCustomOp* self, size_t i) noexcept { return Number(Of(self).typing.inputs[i]); };
    GetInputCharacteristic = [](const OrtCustomOp* self, size_t i) noexcept {
      return SchemaPresence(Of(self).def.inputs[i]);
    };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) noexcept { return OrtMemTypeDefault; };
    GetOutputTypeCount = [](const OrtCustomOp* self) noexcept { return Of(self).def.outputs.size(); };
    GetOutputType = [](const OrtCustomOp* self, size_t i) noexcept { return Number(Of(self).typing.outputs[i]); };
    GetOutputCharacteristic = [](const OrtCustomOp* self, size_t i) noexcept {
      // A caller may leave any output unnamed, but not all of them.
      const OrtCustomOpInputOutputCharacteristic presence = SchemaPresence(Of(self).def.outputs[i]);
      return i > 0 && presence == INPUT_OUTPUT_REQUIRED ? INPUT_OUTPUT_OPTIONAL : presence;
    };
    GetVariadicInputMinArity = [](const OrtCustomOp* self) noexcept {
      return Of(self).def.inputs.back().optional ? 0 : 1;
    };
    GetVariadicInputHomogeneity = [](const OrtCustomOp*) noexcept { return 0; };
    GetVariadicOutputMinArity = [](const OrtCustomOp*) noexcept { return 1; };
    GetVariadicOutputHomogeneity = [](const OrtCustomOp*) noexcept { return 0; };
    GetStartVersion = [](const OrtCustomOp* self) noexcept { return Of(self).def.since; };
    GetEndVersion = [](const OrtCustomOp* self) noexcept { return Of(self).def.until; };
    CreateKernelV2 = [](const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo*, void** kernel) noexcept {
      *kernel = nullptr;
      return api->CreateStatus(ORT_NOT_IMPLEMENTED,
                               Concat("npu:", Of(self).def.type,
                                      " has no CPU form in this model: run it on NPUExecutionProvider with inputs "
                                      "of supported types, or export the model with function bodies")
                                   .c_str());
    };
    KernelDestroy = [](void*) noexcept {};
    KernelComputeV2 = [](void*, OrtKernelContext*) noexcept -> OrtStatus* { return nullptr; };
  }

 private:
  static const Op& Of(const OrtCustomOp* self) { return *static_cast<const Op*>(self); }
  static ONNXTensorElementDataType Number(DType type) { return static_cast<ONNXTensorElementDataType>(type); }
};

CustomOpDomain::CustomOpDomain(const OrtApi& ort) : domain_(nullptr, ort.ReleaseCustomOpDomain) {
  const Api api{ort, *ort.GetEpApi()};
  OrtCustomOpDomain* raw = nullptr;
  api.Check(ort.CreateCustomOpDomain("npu", &raw));
  domain_.reset(raw);
  for (const OpDef* def : OpRegistry::Instance().All()) {
    if (def->domain != "npu") continue;
    for (const Typing& typing : def->typings) {
      ops_.push_back(std::make_unique<Op>(*def, typing));
      api.Check(ort.CustomOpDomain_Add(raw, ops_.back().get()));
    }
  }
}

CustomOpDomain::~CustomOpDomain() = default;

}  // namespace npu::provider
