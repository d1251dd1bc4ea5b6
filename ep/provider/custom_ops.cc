#include "ep/provider/custom_ops.h"

#include <atomic>
#include <optional>

#include "ep/runtime/attribute_typing.h"

namespace npu::provider {
namespace {

OrtCustomOpInputOutputCharacteristic SchemaPresence(const ArgDef& arg) {
  if (arg.variadic) return INPUT_OUTPUT_VARIADIC;
  return arg.optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
}

// The node's integer attribute; none if it is absent or of another kind.
std::optional<int64_t> IntAttribute(const OrtApi& api, const OrtShapeInferContext* context, const std::string& name) {
  const OrtOpAttr* attribute = nullptr;
  int64_t value = 0;
  size_t size = 0;
  OrtStatus* status = api.ShapeInferContext_GetAttribute(context, name.c_str(), &attribute);
  if (status == nullptr) status = api.ReadOpAttr(attribute, ORT_OP_ATTR_INT, &value, sizeof value, &size);
  if (status == nullptr) return value;
  api.ReleaseStatus(status);
  return std::nullopt;
}

// The output dtype that the node's attribute selects; kUndefined: none.
DType TypeByAttribute(const OrtApi& api, const OrtShapeInferContext* context, const AttributeTyping& typing) {
  const std::optional<int64_t> value = IntAttribute(api, context, typing.attribute);
  if (!value) return typing.absent;
  for (const auto& [code, type] : typing.types)
    if (code == *value) return type;
  return DType::kUndefined;
}

// ORT accepts a type only together with a shape, so the output gets unique symbolic dimensions, as many as the first
// input has and as the node's attribute adds. If the input is a scalar or its rank is unknown, which ORT does not
// distinguish, the model must declare the type.
void InferByAttribute(const Api& api, OrtShapeInferContext* context, const AttributeTyping& typing) {
  static std::atomic<uint64_t> next_symbol{0};
  OrtTensorTypeAndShapeInfo* input = nullptr;  // owned by the context
  api.Check(api.ort.ShapeInferContext_GetInputTypeShape(context, 0, &input));
  size_t rank = 0;
  if (input != nullptr) api.Check(api.ort.GetDimensionsCount(input, &rank));
  if (rank == 0) return;
  DType type = TypeByAttribute(api.ort, context, typing);
  if (type == DType::kUndefined && typing.otherwise_input) {
    ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    api.Check(api.ort.GetTensorElementType(input, &element));
    type = static_cast<DType>(element);
  }
  if (type == DType::kUndefined) return;
  if (!typing.added_axes.empty()) {
    const int64_t added = IntAttribute(api.ort, context, typing.added_axes).value_or(0);
    if (added < 0 || added > Shape::kMaxRank) return;  // the kernel refuses such a node
    rank += static_cast<size_t>(added);
  }
  std::vector<std::string> names;
  std::vector<const char*> symbols;
  for (size_t i = 0; i < rank; ++i) names.push_back(Concat("npu_dimension_", next_symbol++));
  for (const std::string& name : names) symbols.push_back(name.c_str());
  const std::vector<int64_t> unknown(rank, -1);
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  api.Check(api.ort.CreateTensorTypeAndShapeInfo(&raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api.ort.ReleaseTensorTypeAndShapeInfo)> info(
      raw, api.ort.ReleaseTensorTypeAndShapeInfo);
  api.Check(api.ort.SetTensorElementType(raw, static_cast<ONNXTensorElementDataType>(type)));
  api.Check(api.ort.SetDimensions(raw, unknown.data(), rank));
  api.Check(api.ort.SetSymbolicDimensions(raw, symbols.data(), rank));
  api.Check(api.ort.ShapeInferContext_SetOutputTypeShape(context, typing.output, raw));
}

}  // namespace

// ORT infers an output's type from the first operator of that name whose inputs match, so one operator is declared per
// typing.
struct CustomOpDomain::Op : OrtCustomOp {
  const OpDef& def;
  const Typing& typing;
  const Api api;

  Op(const OpDef& definition, const Typing& types, const Api& apis)
      : OrtCustomOp{}, def(definition), typing(types), api(apis) {
    version = ORT_API_VERSION;
    GetName = [](const OrtCustomOp* self) noexcept { return Of(self).def.type.c_str(); };
    // The CPU provider: naming this one would prefer this operator's own kernel to the registry's.
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
      // A model may leave any output unnamed, but not all of them.
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
    if (!AttributeTypingsOf(def.type).empty()) {
      InferOutputShapeFn = [](const OrtCustomOp* self, OrtShapeInferContext* context) noexcept -> OrtStatusPtr {
        try {
          for (const AttributeTyping& typing : AttributeTypingsOf(Of(self).def.type))
            InferByAttribute(Of(self).api, context, typing);
          return nullptr;
        } catch (const std::exception& error) {
          return Of(self).api.ort.CreateStatus(ORT_FAIL, error.what());
        }
      };
    }
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
      ops_.push_back(std::make_unique<Op>(*def, typing, api));
      api.Check(ort.CustomOpDomain_Add(raw, ops_.back().get()));
    }
  }
}

CustomOpDomain::~CustomOpDomain() = default;

}  // namespace npu::provider
