#include "ep/provider/context/context_node.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "ep/provider/context/argument_types.h"
#include "ep/provider/factory.h"
#include "ep/provider/fusion/fused_kernel.h"
#include "ep/runtime/packed_blocks.h"
#include "ep/runtime/run_to_end.h"

namespace npu::provider {
namespace {

// Onnxruntime's operator and its attributes.
constexpr char kContextOperator[] = "EPContext", kContextDomain[] = "com.microsoft";
// Behind embedded blocks, because onnxruntime drops a zero at the end of a string.
constexpr char kEndOfBlocks = '.';

class AttributeList {
 public:
  explicit AttributeList(const Api& api) : api_(api) {}
  ~AttributeList() {
    for (OrtOpAttr* attribute : attributes_) api_.ort.ReleaseOpAttr(attribute);
  }
  AttributeList(const AttributeList&) = delete;
  AttributeList& operator=(const AttributeList&) = delete;

  void Add(const char* name, const std::string& text) {
    NPU_CHECK(text.size() <= static_cast<size_t>(INT32_MAX), "NPUExecutionProvider: ep.context_embed_mode expected ",
              "packed constants below 2 GiB in a node, got ", text.size(), " bytes; set it to 0");
    Add(name, text.data(), static_cast<int>(text.size()), ORT_OP_ATTR_STRING);
  }
  void Add(const char* name, int64_t value) { Add(name, &value, 1, ORT_OP_ATTR_INT); }

  OrtOpAttr** data() { return attributes_.data(); }
  size_t size() const { return attributes_.size(); }

 private:
  void Add(const char* name, const void* data, int length, OrtOpAttrType type) {
    OrtOpAttr* attribute = nullptr;
    api_.Check(api_.ort.CreateOpAttr(name, data, length, type, &attribute));
    attributes_.push_back(attribute);
  }

  const Api& api_;
  std::vector<OrtOpAttr*> attributes_;
};

std::vector<const char*> NamesOfValues(const std::vector<ValueView>& values) {
  std::vector<const char*> names;
  for (const ValueView& value : values)
    if (value.info != nullptr) names.push_back(value.name.c_str());
  return names;
}

// Finds out whether a kernel packs, without packing.
struct PackingProbe final : PackedBlocks {
  struct Packs {};
  std::shared_ptr<const void> Take(size_t) override { throw Packs(); }
  void Packed(const void*, size_t) override {}
};

// Onnxruntime returns outputs of fused nodes in memory of its own.
bool UpdatesInPlace(const OpDef& def) { return !def.mutable_alias.empty(); }

// The node as a group of one.
Fusion NodeAsFusion(GraphNode node, size_t index, const OpDef& def) {
  DropEmptyOptionals(def, node);
  FusedNode fused = GroupOfOne(node, index);
  for (size_t i = 0; i < fused.inputs.size(); ++i)
    if (node.view.inputs[i] == DType::kUndefined) fused.inputs[i] = {};
  return {std::move(fused), &def};
}

}  // namespace

bool IsContextNode(const GraphNode& node) {
  return node.view.op_type == kContextOperator && node.domain == kContextDomain &&
         node.view.attributes.String("source", "") == kEpName;
}

Fusion ReadContextNode(const Api& api, const GraphNode& node, size_t index, const Options& options) {
  if (!node.unreadable.empty()) Fail(ErrorCode::kInvalidArgument, node.unreadable);
  NPU_CHECK(!options.host_memory, "NPUExecutionProvider: provider option 'host_memory' expected a model that is not ",
            "compiled: a compiled model keeps values in NPU memory");
  ContextDescription description = ParseDescription(node.view.attributes.String("notes", ""));
  FusedNode fused;
  fused.domain = std::move(description.domain);
  fused.type = std::move(description.type);
  fused.version = description.version;
  fused.attributes = std::move(description.attributes);
  fused.outputs = node.outputs;
  fused.nodes = {index};
  for (const int64_t input : description.inputs) {
    const auto count = static_cast<int64_t>(node.inputs.size());
    NPU_CHECK(input >= -1 && input < count, "expected inputs of the operator among the ", count, " of the EPContext, ",
              "got ", input);
    fused.inputs.push_back(input < 0 ? ValueView{} : node.inputs[static_cast<size_t>(input)]);
  }
  const OpDef* def = FindDefinition(fused, options.graphs);
  NPU_CHECK(def != nullptr && !UpdatesInPlace(*def), "expected an operator that the NPU implements for these inputs, ",
            "got ", OperatorName(fused.domain, fused.type), " of version ", fused.version);
  CheckArgumentTypes(api, fused, *def);
  return {std::move(fused), def};
}

ContextData ReadContextData(const GraphNode& node) {
  const Attributes& attributes = node.view.attributes;
  ContextData out;
  out.blocks = ParseDescription(attributes.String("notes", "")).blocks;
  out.stamp = {attributes.String("ep_sdk_version", ""), attributes.String("hardware_architecture", "")};
  out.embedded = attributes.Int("embed_mode", 1) != 0;
  out.content = attributes.String("ep_cache_context", "");
  if (out.embedded && !out.content.empty()) out.content.pop_back();
  return out;
}

OrtNode* NewContextNode(const Api& api, const Fusion& fusion, const OrtNode* fused_node, const ContextData& data) {
  ContextDescription description;
  description.domain = fusion.fused.domain;
  description.type = fusion.fused.type;
  description.version = fusion.fused.version;
  description.attributes = fusion.fused.attributes;
  description.blocks = data.blocks;
  int64_t passed = 0;
  for (const ValueView& input : fusion.fused.inputs)
    description.inputs.push_back(input.info == nullptr ? -1 : passed++);
  AttributeList attributes(api);
  attributes.Add("main_context", 1);
  attributes.Add("embed_mode", data.embedded ? 1 : 0);
  attributes.Add("ep_cache_context", data.embedded ? data.content + kEndOfBlocks : data.content);
  attributes.Add("ep_sdk_version", data.stamp.version);
  attributes.Add("hardware_architecture", data.stamp.architecture);
  attributes.Add("source", std::string(kEpName));
  attributes.Add("notes", ToText(description));

  const char* name = nullptr;
  api.Check(api.ort.Node_GetName(fused_node, &name));
  const std::vector<const char*> inputs = NamesOfValues(fusion.fused.inputs);
  const std::vector<const char*> outputs = NamesOfValues(fusion.fused.outputs);
  const OrtModelEditorApi* editor = api.ort.GetModelEditorApi();
  NPU_CHECK(editor != nullptr, "NPUExecutionProvider: ep.context_enable expected an onnxruntime that can edit models");
  OrtNode* node = nullptr;
  api.Check(editor->CreateNode(kContextOperator, kContextDomain, name, inputs.data(), inputs.size(), outputs.data(),
                               outputs.size(), attributes.data(), attributes.size(), &node));
  return node;
}

std::optional<Fusion> FindPackingNode(const Api& api, const Options& options, DeviceState& device,
                                      const GraphNode& node, size_t index, const OpDef& def) {
  Fusion fusion = NodeAsFusion(node, index, def);
  const std::vector<ValueView>& inputs = fusion.fused.inputs;
  for (const ValueView& input : inputs) {
    size_t readers = 0;
    if (!input.constant) continue;
    api.Check(api.ort.ValueInfo_GetValueNumConsumers(input.info, &readers));
    if (readers > 1 && IsTooLargeToCopy(input)) return std::nullopt;
  }
  const bool omits = std::any_of(node.outputs.begin(), node.outputs.end(),
                                 [](const ValueView& output) { return output.info == nullptr; });
  if (omits || UpdatesInPlace(def) || FindDefinition(fusion.fused, options.graphs) != &def) return std::nullopt;
  const std::unique_ptr<Kernel> kernel = MakeFusedKernel(fusion, options, node.name);
  PackingProbe probe;
  const PackedBlocksScope scope(&probe);
  const DeviceState::OwnStream own(device);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].info == nullptr || !inputs[i].constant) continue;
    TensorView view;
    view.present = true;
    view.dtype = inputs[i].dtype;
    view.shape = Shape(inputs[i].shape);
    const void* data = nullptr;
    api.Check(api.ort.GetTensorData(ConstantValue(api, inputs[i]), &data));
    view.data = const_cast<void*>(data);
    try {
      RunToEnd(*own, [&] { kernel->PrePack(i, view, *own); });
    } catch (const PackingProbe::Packs&) {
      return fusion;
    }
  }
  return std::nullopt;
}

Fusion FindFusion(const Api& api, const std::vector<GraphNode>& nodes, const Options& options) {
  if (nodes.size() == 1) {
    const GraphNode& node = nodes[0];
    if (IsContextNode(node)) return ReadContextNode(api, node, 0, options);
    const OpDef* def = OpRegistry::Instance().Find(node.domain, node.view.op_type, node.view.since_version);
    if (def != nullptr) return NodeAsFusion(node, 0, *def);
  }
  if (std::optional<Fusion> fusion = FindFusionOfAll(api, nodes, options.graphs)) return std::move(*fusion);
  Fail(ErrorCode::kInternal, "expected a group of nodes that a fusion rule recognises, got ", nodes.size(),
       " others; set the provider option fusion to 0");
}

}  // namespace npu::provider
