#include "ep/provider/host_memory_plan.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace npu::provider {
namespace {

// Whether onnxruntime might find that one buffer fits both. It never shares that of a scalar, and what is unknown now
// may become known before it plans.
bool MayShareBuffer(const ValueView& a, const ValueView& b) {
  if (a.dtype != b.dtype) return false;
  if (!a.rank_known || !b.rank_known) return true;
  if (a.shape.empty() || a.shape.size() != b.shape.size()) return false;
  return std::equal(a.shape.begin(), a.shape.end(), b.shape.begin(),
                    [](int64_t x, int64_t y) { return x == y || x < 0 || y < 0; });
}

// The values in host memory that nodes of the NPU, or copies from it, write.
class HostValues {
 public:
  HostValues(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs,
             const std::vector<bool>& on_cpu) {
    std::unordered_set<std::string_view> read_on_host, read_by_cpu;
    for (size_t n = 0; n < nodes.size(); ++n) {
      const bool cpu = on_cpu[n] || defs[n] == nullptr;
      for (size_t i = 0; i < nodes[n].inputs.size(); ++i) {
        const ValueView& input = nodes[n].inputs[i];
        if (input.info == nullptr) continue;
        const ArgDef* arg = cpu ? nullptr : ArgAt(defs[n]->inputs, i);
        if (cpu) read_by_cpu.insert(input.name);
        if (arg != nullptr && arg->cpu) read_on_host.insert(input.name);
      }
    }
    for (size_t n = 0; n < nodes.size(); ++n) {
      if (on_cpu[n] || defs[n] == nullptr) continue;
      for (size_t i = 0; i < nodes[n].outputs.size(); ++i) {
        const ValueView& output = nodes[n].outputs[i];
        if (output.info == nullptr || output.graph_output) continue;
        const ArgDef* arg = ArgAt(defs[n]->outputs, i);
        const bool written_on_host = arg != nullptr && arg->cpu;
        if (written_on_host) written_.insert(output.name);
        if ((written_on_host || read_on_host.contains(output.name)) && !read_by_cpu.contains(output.name))
          of_npu_only_.push_back(&output);
      }
    }
  }

  // Whether the plan may have given the value the buffer of one that no node of the CPU reads.
  bool MayHaveBufferOfAnother(const ValueView& value) const {
    return written_.contains(value.name) &&
           std::any_of(of_npu_only_.begin(), of_npu_only_.end(), [&](const ValueView* other) {
             return other->name != value.name && MayShareBuffer(*other, value);
           });
  }

 private:
  std::unordered_set<std::string_view> written_;
  std::vector<const ValueView*> of_npu_only_;
};

}  // namespace

std::vector<bool> FindUnsafeViews(const std::vector<GraphNode>& nodes, const std::vector<const OpDef*>& defs,
                                  const std::vector<bool>& on_cpu) {
  const HostValues values(nodes, defs, on_cpu);
  std::vector<bool> unsafe(nodes.size(), false);
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!on_cpu[n]) continue;
    for (const auto& [input, output] : defs[n]->view_alias) {
      const auto i = static_cast<size_t>(input);
      if (i < nodes[n].inputs.size() && values.MayHaveBufferOfAnother(nodes[n].inputs[i])) unsafe[n] = true;
    }
  }
  return unsafe;
}

}  // namespace npu::provider
