#include "ep/provider/fusion/shape_values.h"

#include <algorithm>

namespace npu::provider {
namespace {

using Elements = std::optional<std::vector<std::string>>;

// A position as Slice and Shape count it: from the end if it is negative, within the list.
size_t PositionIn(int64_t at, size_t size) {
  const auto n = static_cast<int64_t>(size);
  return static_cast<size_t>(std::clamp<int64_t>(at < 0 ? std::max(at, -n) + n : at, 0, n));
}

Elements Part(const std::vector<std::string>& all, int64_t start, int64_t end) {
  const size_t from = PositionIn(start, all.size()), to = PositionIn(end, all.size());
  if (from >= to) return std::vector<std::string>();
  return std::vector<std::string>(all.begin() + static_cast<int64_t>(from), all.begin() + static_cast<int64_t>(to));
}

Elements OfShape(FusionMatch& match, const GraphNode& node) {
  const Elements dims = match.graph().Dims(node.inputs[0]);
  if (!dims) return std::nullopt;
  const Attributes& attributes = node.view.attributes;
  return Part(*dims, attributes.Int("start", 0), attributes.Int("end", static_cast<int64_t>(dims->size())));
}

Elements OfGather(FusionMatch& match, const GraphNode& node) {
  const auto indices = match.graph().Ints(node.inputs[1]);
  if (!indices || node.inputs[1].shape.size() != 1) return std::nullopt;
  const Elements all = TakeShape(match, node.inputs[0]);
  if (!all) return std::nullopt;
  const auto size = static_cast<int64_t>(all->size());
  std::vector<std::string> out;
  for (const int64_t index : *indices) {
    if (index < -size || index >= size) return std::nullopt;
    out.push_back((*all)[static_cast<size_t>(index < 0 ? index + size : index)]);
  }
  return out;
}

Elements OfSlice(FusionMatch& match, const GraphNode& node) {
  if (node.inputs.size() < 3) return std::nullopt;  // before operator set 10
  const auto starts = match.graph().Ints(node.inputs[1]), ends = match.graph().Ints(node.inputs[2]);
  if (!starts || !ends || starts->size() != 1 || ends->size() != 1) return std::nullopt;
  for (size_t i = 4; i < node.inputs.size(); ++i) {
    if (node.inputs[i].info != nullptr && match.graph().Scalar(node.inputs[i]) != 1.0) return std::nullopt;
  }
  const Elements all = TakeShape(match, node.inputs[0]);
  return all ? Part(*all, starts->front(), ends->front()) : std::nullopt;
}

Elements OfConcat(FusionMatch& match, const GraphNode& node) {
  std::vector<std::string> out;
  for (const ValueView& input : node.inputs) {
    const Elements part = TakeShape(match, input);
    if (!part) return std::nullopt;
    out.insert(out.end(), part->begin(), part->end());
  }
  return out;
}

}  // namespace

std::optional<std::vector<std::string>> TakeShape(FusionMatch& match, const ValueView& value) {
  if (value.constant) {
    const auto ints = match.graph().Ints(value);
    if (!ints || value.shape.size() != 1) return std::nullopt;
    std::vector<std::string> out;
    for (const int64_t element : *ints) out.push_back(std::to_string(element));
    return out;
  }
  const GraphNode* node = match.graph().Producer(value);
  Elements elements;
  if (match.Take(node, "Shape")) elements = OfShape(match, *node);
  if (match.Take(node, "Gather")) elements = OfGather(match, *node);
  if (match.Take(node, "Slice")) elements = OfSlice(match, *node);
  if (match.Take(node, "Concat")) elements = OfConcat(match, *node);
  if (!elements || std::any_of(elements->begin(), elements->end(), [](const std::string& e) { return e.empty(); }))
    return std::nullopt;
  return elements;
}

}  // namespace npu::provider
