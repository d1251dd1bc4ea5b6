#include "ep/provider/custom_ops.h"

namespace npu::provider {
namespace {

// The one type of the set, or "any tensor": a custom operator's schema cannot list several.
ONNXTensorElementDataType SchemaType(const ArgDef& arg) {
  const uint64_t bits = arg.dtypes.bits();
  if (__builtin_popcountll(bits) != 1) return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  return static_cast<ONNXTensorElementDataType>(__builtin_ctzll(bits));
}

OrtCustomOpInputOutputCharacteristic SchemaPresence(const ArgDef& arg) {
  if (arg.variadic) return INPUT_OUTPUT_VARIADIC;
  return arg.optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

// ORT types an output by the first operator of a name whose inputs fit, so one operator is declared per type that the
// outputs can take: `typed` is the input they follow, the first that allows the same types as an output of several.
constexpr size_t kNone = static_cast<size_t>(-1);
size_t InputThatTypes(const OpDef& def) {
  for (const ArgDef& output : def.outputs) {
    if (SchemaType(output) != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) continue;
    for (size_t i = 0; i < def.inputs.size(); ++i) {
      if (def.inputs[i].dtypes.bits() == output.dtypes.bits()) return i;
    }
  }
  return kNone;
}

}  // namespace

struct CustomOpDomain::Op : OrtCustomOp {
  const OpDef& def;
  const size_t typed;
  const ONNXTensorElementDataType type;  // of input `typed` and the outputs that follow it

  Op(const OpDef& definition, size_t typed_input, ONNXTensorElementDataType typed_as)
      : OrtCustomOp{}, def(definition), typed(typed_input), type(typed_as) {
    version = ORT_API_VERSION;
    GetName = [](const OrtCustomOp* self) noexcept { return Of(self).def.type.c_str(); };
    // The CPU provider's: naming ours would put this operator's own kernel before the registry's.
    GetExecutionProviderType = [](const OrtCustomOp*) noexcept -> const char* { return nullptr; };
    GetInputTypeCount = [](const OrtCustomOp* self) noexcept { return Of(self).def.inputs.size(); };
    GetInputType = [](const OrtCustomOp* self, size_t i) noexcept {
      return i == Of(self).typed ? Of(self).type : SchemaType(Of(self).def.inputs[i]);
    };
    GetInputCharacteristic = [](const OrtCustomOp* self, size_t i) noexcept {
      return SchemaPresence(Of(self).def.inputs[i]);
    };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) noexcept { return OrtMemTypeDefault; };
    GetOutputTypeCount = [](const OrtCustomOp* self) noexcept { return Of(self).def.outputs.size(); };
    GetOutputType = [](const OrtCustomOp* self, size_t i) noexcept {
      const ONNXTensorElementDataType own = SchemaType(Of(self).def.outputs[i]);
      return own == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED ? Of(self).type : own;
    };
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
};

CustomOpDomain::CustomOpDomain(const OrtApi& ort) : domain_(nullptr, ort.ReleaseCustomOpDomain) {
  const Api api{ort, *ort.GetEpApi()};
  OrtCustomOpDomain* raw = nullptr;
  api.Check(ort.CreateCustomOpDomain("npu", &raw));
  domain_.reset(raw);
  for (const OpDef* def : OpRegistry::Instance().All()) {
    if (def->domain != "npu") continue;
    AddVariants(api, *def);
  }
}

void CustomOpDomain::AddVariants(const Api& api, const OpDef& def) {
  const size_t typed = InputThatTypes(def);
  const uint64_t types = typed == kNone ? 1 : def.inputs[typed].dtypes.bits();
  for (int number = 0; number < 64; ++number) {
    if ((types >> number & 1) == 0) continue;
    ops_.push_back(std::make_unique<Op>(def, typed, static_cast<ONNXTensorElementDataType>(number)));
    api.Check(api.ort.CustomOpDomain_Add(domain_.get(), ops_.back().get()));
  }
}

CustomOpDomain::~CustomOpDomain() = default;

}  // namespace npu::provider
