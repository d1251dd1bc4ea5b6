#include "ep/provider/fusion/graph.h"

#include "ep/kernels/convert.h"

namespace npu::provider {
namespace {

template <class T>
T ElementAt(const void* data, size_t i = 0) {
  return static_cast<const T*>(data)[i];
}

}  // namespace

FusionGraph::FusionGraph(const Api& api, const std::vector<GraphNode>& nodes, bool of_group)
    : api_(api), nodes_(nodes), of_group_(of_group), sources_(nodes.size()) {
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const auto read = [&](std::string_view name) {
      ++readers_[name];
      if (const auto found = producers_.find(name); found != producers_.end()) sources_[n].push_back(found->second);
    };
    for (const ValueView& input : nodes_[n].inputs) {
      if (input.info == nullptr) continue;
      read(input.name);
      last_readers_[input.name] = n;
    }
    for (const char* name : ImplicitInputsOf(api_, nodes_[n].node)) read(name);
    for (const ValueView& output : nodes_[n].outputs) {
      if (output.info == nullptr) continue;
      producers_[output.name] = n;
      if (output.graph_output) ++readers_[output.name];
    }
  }
}

const GraphNode* FusionGraph::Producer(const ValueView& value) const {
  if (value.info == nullptr) return nullptr;
  const auto found = producers_.find(value.name);
  return found == producers_.end() ? nullptr : &nodes_[found->second];
}

size_t FusionGraph::Readers(const ValueView& value) const {
  const auto found = readers_.find(value.name);
  return found == readers_.end() ? 0 : found->second;
}

const GraphNode* FusionGraph::SoleReader(const ValueView& value) const {
  const auto found = last_readers_.find(value.name);
  return found == last_readers_.end() || Readers(value) != 1 ? nullptr : &nodes_[found->second];
}

const OrtValue* ConstantValue(const Api& api, const ValueView& constant) {
  const OrtValue* value = nullptr;
  api.Check(api.ort.ValueInfo_GetInitializerValue(constant.info, &value));
  NPU_CHECK(value != nullptr, "expected the value of constant '", constant.name, "', got none");
  return value;
}

std::optional<std::vector<std::string>> FusionGraph::Dims(const ValueView& value) const {
  if (value.info == nullptr || !value.rank_known) return std::nullopt;
  const OrtTypeInfo* type = nullptr;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  api_.Check(api_.ort.GetValueInfoTypeInfo(value.info, &type));
  api_.Check(api_.ort.CastTypeInfoToTensorInfo(type, &tensor));
  std::vector<const char*> names(value.shape.size());
  if (!names.empty()) api_.Check(api_.ort.GetSymbolicDimensions(tensor, names.data(), names.size()));
  std::vector<std::string> dims;
  for (size_t d = 0; d < names.size(); ++d)
    dims.push_back(value.shape[d] >= 0 ? std::to_string(value.shape[d]) : names[d]);
  return dims;
}

std::optional<double> FusionGraph::Scalar(const ValueView& value) const {
  if (!value.constant || value.StaticElements() != 1) return std::nullopt;
  const void* data = nullptr;
  api_.Check(api_.ort.GetTensorData(ConstantValue(api_, value), &data));
  switch (value.dtype) {
    case DType::kFloat32:
      return ElementAt<float>(data);
    case DType::kFloat64:
      return ElementAt<double>(data);
    case DType::kFloat16:
      return ToFloat(ElementAt<Float16>(data));
    case DType::kBFloat16:
      return ToFloat(ElementAt<BFloat16>(data));
    case DType::kInt32:
      return ElementAt<int32_t>(data);
    case DType::kInt64:
      return static_cast<double>(ElementAt<int64_t>(data));
    case DType::kInt8:
      return ElementAt<int8_t>(data);
    case DType::kUInt8:
      return ElementAt<uint8_t>(data);
    default:
      return std::nullopt;
  }
}

std::optional<std::vector<float>> FusionGraph::Floats(const ValueView& value) const {
  const int64_t count = value.constant ? value.StaticElements() : -1;
  if (count < 0 || value.dtype != DType::kFloat32) return std::nullopt;
  std::vector<float> out(static_cast<size_t>(count));
  if (count == 0) return out;
  const void* data = nullptr;
  api_.Check(api_.ort.GetTensorData(ConstantValue(api_, value), &data));
  for (size_t i = 0; i < out.size(); ++i) out[i] = ElementAt<float>(data, i);
  return out;
}

std::optional<std::vector<int64_t>> FusionGraph::Ints(const ValueView& value) const {
  const int64_t count = value.constant ? value.StaticElements() : -1;
  if (count < 0 || (value.dtype != DType::kInt64 && value.dtype != DType::kInt32)) return std::nullopt;
  std::vector<int64_t> out;
  if (count == 0) return out;
  const void* data = nullptr;
  api_.Check(api_.ort.GetTensorData(ConstantValue(api_, value), &data));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    out.push_back(value.dtype == DType::kInt64 ? ElementAt<int64_t>(data, i) : ElementAt<int32_t>(data, i));
  return out;
}

}  // namespace npu::provider
