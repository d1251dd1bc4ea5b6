#include "ep/provider/custom_ops.h"

#include <utility>

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

// The input whose type an output of several possible types takes: the one that it is the new value of, else the first
// that allows the same ones. kNone: the type is fixed, or no input tells it.
constexpr size_t kNone = static_cast<size_t>(-1);
size_t FollowedInput(const OpDef& def, size_t output) {
  if (SchemaType(def.outputs[output]) != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) return kNone;
  for (const auto& [input, updated] : def.mutable_alias) {
    if (static_cast<size_t>(updated) == output) return static_cast<size_t>(input);
  }
  for (size_t i = 0; i < def.inputs.size(); ++i) {
    if (def.inputs[i].dtypes.bits() == def.outputs[output].dtypes.bits()) return i;
  }
  return kNone;
}

}  // namespace

// ORT types an output by the first operator of a name whose inputs fit. So one operator is declared per combination of
// the types that outputs follow; other inputs of several types are "any".
struct CustomOpDomain::Op : OrtCustomOp {
  const OpDef& def;
  const std::vector<ONNXTensorElementDataType> input_types, output_types;

  Op(const OpDef& definition, std::vector<ONNXTensorElementDataType> inputs,
     std::vector<ONNXTensorElementDataType> outputs)
      : OrtCustomOp{}, def(definition), input_types(std::move(inputs)), output_types(std::move(outputs)) {
    version = ORT_API_VERSION;
    GetName = [](const OrtCustomOp* self) noexcept { return Of(self).def.type.c_str(); };
    // The CPU provider's: naming ours would put this operator's own kernel before the registry's.
    GetExecutionProviderType = [](const OrtCustomOp*) noexcept -> const char* { return nullptr; };
    GetInputTypeCount = [](const OrtCustomOp* self) noexcept { return Of(self).def.inputs.size(); };
    GetInputType = [](const OrtCustomOp* self, size_t i) noexcept { return Of(self).input_types[i]; };
    GetInputCharacteristic = [](const OrtCustomOp* self, size_t i) noexcept {
      return SchemaPresence(Of(self).def.inputs[i]);
    };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) noexcept { return OrtMemTypeDefault; };
    GetOutputTypeCount = [](const OrtCustomOp* self) noexcept { return Of(self).def.outputs.size(); };
    GetOutputType = [](const OrtCustomOp* self, size_t i) noexcept { return Of(self).output_types[i]; };
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
    std::vector<ONNXTensorElementDataType> types;
    for (const ArgDef& input : def->inputs) types.push_back(SchemaType(input));
    AddVariants(api, *def, types, 0);
  }
}

// Fixes the types of the inputs that the outputs from `output` on follow, one combination after the other.
void CustomOpDomain::AddVariants(const Api& api, const OpDef& def, std::vector<ONNXTensorElementDataType>& types,
                                 size_t output) {
  if (output == def.outputs.size()) {
    std::vector<ONNXTensorElementDataType> outputs;
    for (size_t i = 0; i < def.outputs.size(); ++i) {
      const size_t followed = FollowedInput(def, i);
      outputs.push_back(followed == kNone ? SchemaType(def.outputs[i]) : types[followed]);
    }
    ops_.push_back(std::make_unique<Op>(def, types, std::move(outputs)));
    api.Check(api.ort.CustomOpDomain_Add(domain_.get(), ops_.back().get()));
    return;
  }
  const size_t followed = FollowedInput(def, output);
  if (followed == kNone || types[followed] != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) {
    return AddVariants(api, def, types, output + 1);
  }
  for (int number = 1; number < 64; ++number) {
    if (!def.inputs[followed].dtypes.Contains(static_cast<DType>(number))) continue;
    types[followed] = static_cast<ONNXTensorElementDataType>(number);
    AddVariants(api, def, types, output + 1);
  }
  types[followed] = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

CustomOpDomain::~CustomOpDomain() = default;

}  // namespace npu::provider
