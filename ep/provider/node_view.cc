#include "ep/provider/node_view.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "ep/runtime/attribute_alias.h"

namespace npu::provider {
namespace {

void ReadType(const Api& api, const OrtTypeInfo* type, ValueView& out) {
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  api.Check(api.ort.CastTypeInfoToTensorInfo(type, &tensor));
  if (tensor == nullptr) return;
  out.is_tensor = true;
  ONNXTensorElementDataType element;
  api.Check(api.ort.GetTensorElementType(tensor, &element));
  out.dtype = DTypeOfElement(element);
  if (!api.ort.TensorTypeAndShape_HasShape(tensor)) return;
  out.rank_known = true;
  size_t rank = 0;
  api.Check(api.ort.GetDimensionsCount(tensor, &rank));
  out.shape.resize(rank);
  api.Check(api.ort.GetDimensions(tensor, out.shape.data(), rank));
}

// Of a constant of an outer graph whose data is in a file: onnxruntime's GetInitializerValue looks for that in the
// graph that reads it, and fails.
bool IsOutOfReach(const Api& api, const OrtValueInfo* constant) {
  bool outer = false;
  api.Check(api.ort.ValueInfo_IsFromOuterScope(constant, &outer));
  if (!outer) return false;
  OrtExternalInitializerInfo* place = nullptr;
  api.Check(api.ort.ValueInfo_GetExternalInitializerInfo(constant, &place));
  if (place == nullptr) return false;
  api.ort.ReleaseExternalInitializerInfo(place);
  return true;
}

ValueView ReadValue(const Api& api, const OrtValueInfo* info) {
  ValueView out;
  if (info == nullptr) return out;
  const char* name = nullptr;
  api.Check(api.ort.GetValueInfoName(info, &name));
  if (name == nullptr || *name == '\0') return out;
  out.info = info;
  out.name = name;
  const OrtTypeInfo* type = nullptr;
  api.Check(api.ort.GetValueInfoTypeInfo(info, &type));
  if (type != nullptr) ReadType(api, type, out);
  bool required = false, optional = false;
  api.Check(api.ort.ValueInfo_IsConstantInitializer(info, &out.constant));
  out.out_of_reach = out.constant && IsOutOfReach(api, info);
  out.constant = out.constant && !out.out_of_reach;
  api.Check(api.ort.ValueInfo_IsRequiredGraphInput(info, &required));
  api.Check(api.ort.ValueInfo_IsOptionalGraphInput(info, &optional));
  out.graph_input = required || optional;
  api.Check(api.ort.ValueInfo_IsGraphOutput(info, &out.graph_output));
  return out;
}

std::vector<ValueView> ReadValues(const Api& api, const OrtNode* node, decltype(OrtApi::Node_GetNumInputs) count,
                                  decltype(OrtApi::Node_GetInputs) get) {
  size_t n = 0;
  api.Check(count(node, &n));
  std::vector<const OrtValueInfo*> infos(n);
  if (n != 0) api.Check(get(node, infos.data(), n));
  std::vector<ValueView> out;
  out.reserve(n);
  for (const OrtValueInfo* info : infos) out.push_back(ReadValue(api, info));
  return out;
}

// For a buffer that is too small, ReadOpAttr returns an error and the required size.
std::vector<char> ReadRaw(const Api& api, const OrtOpAttr* attr, OrtOpAttrType type) {
  size_t bytes = 0;
  if (api.Succeeded(api.ort.ReadOpAttr(attr, type, nullptr, 0, &bytes))) return {};
  std::vector<char> data(bytes);
  api.Check(api.ort.ReadOpAttr(attr, type, data.data(), data.size(), &bytes));
  data.resize(bytes);
  return data;
}

template <class T, class Wide>
std::vector<Wide> ReadArray(const Api& api, const OrtOpAttr* attr, OrtOpAttrType type) {
  const std::vector<char> raw = ReadRaw(api, attr, type);
  std::vector<T> values(raw.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), raw.data(), values.size() * sizeof(T));
  return std::vector<Wide>(values.begin(), values.end());
}

// Strings are concatenated, each with its terminating zero.
std::vector<std::string> SplitStrings(const std::vector<char>& raw) {
  std::vector<std::string> out;
  for (size_t at = 0; at < raw.size();) {
    const size_t length = strnlen(raw.data() + at, raw.size() - at);
    out.emplace_back(raw.data() + at, length);
    at += length + 1;
  }
  return out;
}

TensorAttribute TensorOf(const Api& api, const OrtValue* value) {
  TensorAttribute out;
  ONNXTensorElementDataType type;
  const int64_t* dims = nullptr;
  size_t rank = 0, bytes = 0;
  api.Check(api.ort.GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
  out.dtype = DTypeOfElement(type);
  NPU_CHECK(out.dtype != DType::kUndefined && out.dtype != DType::kString, "a tensor attribute of an unsupported type");
  out.shape.assign(dims, dims + rank);
  api.Check(api.ort.GetTensorSizeInBytes(value, &bytes));
  const void* data = nullptr;
  api.Check(api.ort.GetTensorData(value, &data));
  if (bytes != 0)
    out.data.assign(static_cast<const unsigned char*>(data), static_cast<const unsigned char*>(data) + bytes);
  return out;
}

Attributes::Value ReadAttribute(const Api& api, const OrtOpAttr* attr, OrtOpAttrType type) {
  switch (type) {
    case ORT_OP_ATTR_INT:
      return ReadArray<int64_t, int64_t>(api, attr, type).at(0);
    case ORT_OP_ATTR_FLOAT:
      return ReadArray<float, double>(api, attr, type).at(0);
    case ORT_OP_ATTR_STRING: {
      const std::vector<char> text = ReadRaw(api, attr, type);
      return std::string(text.begin(), text.end());
    }
    case ORT_OP_ATTR_INTS:
      return ReadArray<int64_t, int64_t>(api, attr, type);
    case ORT_OP_ATTR_FLOATS:
      return ReadArray<float, double>(api, attr, type);
    case ORT_OP_ATTR_STRINGS:
      return SplitStrings(ReadRaw(api, attr, type));
    case ORT_OP_ATTR_TENSOR: {
      OrtValue* raw = nullptr;
      api.Check(api.ort.OpAttr_GetTensorAttributeAsOrtValue(attr, &raw));
      auto value = Own(raw, api.ort.ReleaseValue);
      return TensorOf(api, value.get());
    }
    default:
      Fail(ErrorCode::kUnsupported, "of a kind that is not supported (a subgraph?)");
  }
}

void ReadNodeAttributes(const Api& api, GraphNode& out) {
  size_t count = 0;
  api.Check(api.ort.Node_GetNumAttributes(out.node, &count));
  std::vector<const OrtOpAttr*> attrs(count);
  if (count != 0) api.Check(api.ort.Node_GetAttributes(out.node, attrs.data(), count));
  for (const OrtOpAttr* attr : attrs) {
    const char* name = nullptr;
    OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
    api.Check(api.ort.OpAttr_GetName(attr, &name));
    try {
      api.Check(api.ort.OpAttr_GetType(attr, &type));
      out.view.attributes.Set(name, ReadAttribute(api, attr, type));
    } catch (const std::exception& error) {
      out.unreadable = Concat("attribute '", name, "' cannot be read: ", error.what());
    }
  }
}

const char* NameOf(AttrDef::Kind kind) {
  switch (kind) {
    case AttrDef::Kind::kInt:
      return "an int";
    case AttrDef::Kind::kFloat:
      return "a float";
    case AttrDef::Kind::kString:
      return "a string";
    case AttrDef::Kind::kInts:
      return "a list of ints";
    case AttrDef::Kind::kFloats:
      return "a list of floats";
    case AttrDef::Kind::kStrings:
      return "a list of strings";
    case AttrDef::Kind::kTensor:
      return "a tensor";
  }
  return "?";
}

bool Holds(const Attributes::Value& value, AttrDef::Kind kind) {
  switch (kind) {
    case AttrDef::Kind::kInt:
      return std::holds_alternative<int64_t>(value);
    case AttrDef::Kind::kFloat:  // torch_npu writes some whole numbers as integers
      return std::holds_alternative<double>(value) || std::holds_alternative<int64_t>(value);
    case AttrDef::Kind::kString:
      return std::holds_alternative<std::string>(value);
    case AttrDef::Kind::kInts:
      return std::holds_alternative<std::vector<int64_t>>(value);
    case AttrDef::Kind::kFloats:
      return std::holds_alternative<std::vector<double>>(value);
    case AttrDef::Kind::kStrings:
      return std::holds_alternative<std::vector<std::string>>(value);
    case AttrDef::Kind::kTensor:
      return std::holds_alternative<TensorAttribute>(value);
  }
  return false;
}

// Sets the attribute if the node has it. A failing read means that it does not: its kind was checked when the node was
// claimed.
void TakeAttribute(const Api& api, const OrtKernelInfo* info, const std::string& attribute, AttrDef::Kind kind,
                   Attributes& out) {
  OrtAllocator* allocator = nullptr;
  api.Check(api.ort.GetAllocatorWithDefaultOptions(&allocator));
  const char* name = attribute.c_str();
  size_t size = 0;
  switch (kind) {
    case AttrDef::Kind::kInt: {
      int64_t value = 0;
      if (api.Succeeded(api.ort.KernelInfoGetAttribute_int64(info, name, &value))) out.Set(attribute, value);
      break;
    }
    case AttrDef::Kind::kFloat: {
      float value = 0;
      int64_t whole = 0;
      if (api.Succeeded(api.ort.KernelInfoGetAttribute_float(info, name, &value))) {
        out.Set(attribute, static_cast<double>(value));
      } else if (api.Succeeded(api.ort.KernelInfoGetAttribute_int64(info, name, &whole))) {
        out.Set(attribute, static_cast<double>(whole));
      }
      break;
    }
    case AttrDef::Kind::kString: {
      if (!api.Succeeded(api.ort.KernelInfoGetAttribute_string(info, name, nullptr, &size))) break;
      out.Set(attribute, ReadString(api, [&](char* text, size_t* n) {
                return api.ort.KernelInfoGetAttribute_string(info, name, text, n);
              }));
      break;
    }
    case AttrDef::Kind::kInts: {
      if (!api.Succeeded(api.ort.KernelInfoGetAttributeArray_int64(info, name, nullptr, &size))) break;
      std::vector<int64_t> values(size);
      if (size != 0) api.Check(api.ort.KernelInfoGetAttributeArray_int64(info, name, values.data(), &size));
      out.Set(attribute, std::move(values));
      break;
    }
    case AttrDef::Kind::kFloats: {
      if (!api.Succeeded(api.ort.KernelInfoGetAttributeArray_float(info, name, nullptr, &size))) break;
      std::vector<float> values(size);
      if (size != 0) api.Check(api.ort.KernelInfoGetAttributeArray_float(info, name, values.data(), &size));
      out.Set(attribute, std::vector<double>(values.begin(), values.end()));
      break;
    }
    case AttrDef::Kind::kStrings: {
      char** texts = nullptr;
      if (!api.Succeeded(api.ort.KernelInfoGetAttributeArray_string(info, name, allocator, &texts, &size))) break;
      std::vector<std::string> values;
      for (size_t i = 0; i < size; ++i) {
        values.emplace_back(texts[i]);
        allocator->Free(allocator, texts[i]);
      }
      if (texts != nullptr) allocator->Free(allocator, texts);
      out.Set(attribute, std::move(values));
      break;
    }
    case AttrDef::Kind::kTensor: {
      OrtValue* raw = nullptr;
      if (!api.Succeeded(api.ort.KernelInfoGetAttribute_tensor(info, name, allocator, &raw))) break;
      auto value = Own(raw, api.ort.ReleaseValue);
      out.Set(attribute, TensorOf(api, value.get()));
      break;
    }
  }
}

}  // namespace

int64_t ValueView::StaticElements() const {
  if (!rank_known) return -1;
  int64_t product = 1;
  for (int64_t dim : shape) {
    if (dim < 0) return -1;
    if (__builtin_mul_overflow(product, dim, &product)) return std::numeric_limits<int64_t>::max();
  }
  return product;
}

std::vector<const char*> ImplicitInputsOf(const Api& api, const OrtNode* node) {
  size_t count = 0;
  api.Check(api.ort.Node_GetNumImplicitInputs(node, &count));
  std::vector<const OrtValueInfo*> infos(count);
  if (count != 0) api.Check(api.ort.Node_GetImplicitInputs(node, infos.data(), count));
  std::vector<const char*> names;
  for (const OrtValueInfo* info : infos) {
    const char* name = nullptr;
    api.Check(api.ort.GetValueInfoName(info, &name));
    names.push_back(name);
  }
  return names;
}

std::vector<const OrtNode*> NodesOf(const Api& api, const OrtGraph* graph) {
  size_t count = 0;
  api.Check(api.ort.Graph_GetNumNodes(graph, &count));
  std::vector<const OrtNode*> nodes(count);
  if (count != 0) api.Check(api.ort.Graph_GetNodes(graph, nodes.data(), count));
  return nodes;
}

GraphNode ReadNode(const Api& api, const OrtNode* node) {
  GraphNode out;
  out.node = node;
  const char* text = nullptr;
  api.Check(api.ort.Node_GetName(node, &text));
  out.name = text;
  api.Check(api.ort.Node_GetDomain(node, &text));
  out.domain = std::strcmp(text, "ai.onnx") == 0 ? "" : text;
  api.Check(api.ort.Node_GetOperatorType(node, &text));
  out.view.op_type = text;
  api.Check(api.ort.Node_GetSinceVersion(node, &out.view.since_version));
  out.inputs = ReadValues(api, node, api.ort.Node_GetNumInputs, api.ort.Node_GetInputs);
  out.outputs = ReadValues(api, node, api.ort.Node_GetNumOutputs, api.ort.Node_GetOutputs);
  for (size_t i = 0; i < out.inputs.size(); ++i) {
    const ValueView& input = out.inputs[i];
    const bool usable = input.is_tensor && input.dtype != DType::kUndefined;
    if (input.info != nullptr && !usable)
      out.unreadable = Concat("input ", i, " ('", input.name, "') has no type the NPU knows");
    out.view.inputs.push_back(usable ? input.dtype : DType::kUndefined);
    out.view.constant.push_back(input.constant);
    out.view.shapes.push_back(input.shape);
    out.view.rank_known.push_back(input.rank_known);
  }
  out.view.output_count = out.outputs.size();
  for (const ValueView& output : out.outputs) {
    out.view.output_used.push_back(output.info != nullptr);
    if (output.info != nullptr && !output.is_tensor)
      out.unreadable = Concat("output '", output.name, "' is not a tensor");
  }
  ReadNodeAttributes(api, out);
  return out;
}

std::string WhyAttributesUnsupported(const OpDef& def, const Attributes& attributes) {
  for (const auto& [name, value] : attributes.values()) {
    const AttrDef* found = nullptr;
    for (const AttrDef& attr : def.attributes) {
      if (attr.name == name) found = &attr;
    }
    if (found == nullptr) return Concat("attribute '", name, "' is not implemented");
    if (!Holds(value, found->kind)) return Concat("expected attribute '", name, "' to be ", NameOf(found->kind));
  }
  for (const AttrDef& attr : def.attributes) {
    if (attr.required && !attributes.Has(attr.name)) return Concat("expected attribute '", attr.name, "', got none");
  }
  return "";
}

void DropEmptyOptionals(const OpDef& def, GraphNode& node) {
  if (def.domain != "npu") return;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ArgDef* arg = ArgAt(def.inputs, i);
    if (arg != nullptr && arg->optional && node.inputs[i].constant && node.inputs[i].StaticElements() == 0) {
      node.view.inputs[i] = DType::kUndefined;
    }
  }
}

Attributes ReadAttributes(const Api& api, const OrtKernelInfo* info, const OpDef& def) {
  Attributes out;
  for (const AttrDef& attr : def.attributes) TakeAttribute(api, info, attr.name, attr.kind, out);
  if (def.domain != "npu") return out;
  for (const AttributeAlias& alias : AttributeAliasesOf(def.type)) {
    const auto attr = std::find_if(def.attributes.begin(), def.attributes.end(),
                                   [&](const AttrDef& a) { return a.name == alias.attribute; });
    for (const std::string& name : alias.names) TakeAttribute(api, info, name, attr->kind, out);
    if (alias.words.empty()) continue;
    TakeAttribute(api, info, alias.attribute, AttrDef::Kind::kString, out);
    for (const std::string& name : alias.names) TakeAttribute(api, info, name, AttrDef::Kind::kString, out);
  }
  return AsDefined(def.type, out);
}

const ArgDef* ArgAt(const std::vector<ArgDef>& args, size_t i) {
  if (i < args.size()) return &args[i];
  return !args.empty() && args.back().variadic ? &args.back() : nullptr;
}

}  // namespace npu::provider
