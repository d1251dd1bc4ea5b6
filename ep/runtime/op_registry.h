// The registry of operators: their signatures and how their kernels are created. Filled by static registration next to
// each kernel; npu:: operators get their signature from the generated table.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/kernel.h"

namespace npu {

struct __attribute__((visibility("default"))) ArgDef {
  std::string name;
  DTypeSet dtypes;
  bool optional = false;
  bool variadic = false;
  bool cpu = false;  // the value is in host memory (shapes, axes, sequence lengths)
  // For a cpu argument: the kernel can also read it in device memory when it runs. See KernelInfo::late_inputs.
  bool late = false;
};

struct __attribute__((visibility("default"))) AttrDef {
  std::string name;
  enum class Kind { kInt, kFloat, kString, kInts, kFloats, kStrings, kTensor } kind = Kind::kInt;
  bool required = false;
  std::optional<Attributes::Value> fallback = {};  // none: absence has its own meaning
};

}  // namespace npu

// Every kernel's definition has these lists; compiled once, in the runtime.
extern template class std::vector<npu::ArgDef>;
extern template class std::vector<npu::AttrDef>;

namespace npu {

// What is known of a node before it runs.
struct NodeView {
  std::string op_type;
  int since_version = 1;
  std::vector<DType> inputs;                 // kUndefined: absent
  std::vector<bool> constant;                // input i is an initializer
  std::vector<std::vector<int64_t>> shapes;  // -1 unknown; meaningful where rank_known
  std::vector<bool> rank_known;
  size_t output_count = 0;
  std::vector<bool> output_used;
  Attributes attributes;
};

// Output types of nodes with these input types. kUndefined: an input of any type; an output of the type that the model
// declares.
struct Typing {
  std::vector<DType> inputs, outputs;
};

// The number of elements that an operator computes, if models use it to compute shapes: such a node may stay on the
// CPU, which computes a few values faster than a launch would (docs/decisions/0002).
enum class ShapeArithmetic {
  kNone,         // it computes data
  kShape,        // one per dimension of the input
  kFirst,        // at most as many as the first input has
  kElementwise,  // broadcasting
  kSum,          // the total of all inputs
  kProduct,      // indexing: the first input's count times the second's
  kStated,       // depends on a value: known only when the model states the shape
};

struct OpDef {
  std::string domain = {};  // "" is ai.onnx
  std::string type = {};
  int since = 1, until = 1;  // inclusive range of since-versions whose semantics are implemented
  std::vector<ArgDef> inputs = {}, outputs = {};
  size_t min_inputs = 0;  // 0: the number of non-optional inputs, a variadic one counted once
  std::vector<AttrDef> attributes = {};
  std::vector<std::pair<int, int>> may_alias = {};  // (input, output): the kernel works in place if both are one buffer
  std::vector<std::pair<int, int>> mutable_alias = {};  // (input, output): the output IS the updated input
  // (input, output): the output is the input's bytes under another shape (Reshape, Squeeze, Identity). The framework
  // may pass one buffer for both although the input has other readers, so the kernel copies only between different
  // buffers.
  std::vector<std::pair<int, int>> view_alias = {};
  ShapeArithmetic shape_arithmetic = ShapeArithmetic::kNone;
  // In float32 the CPU computes it in about the time in which its operands would be copied: it may stay there between
  // nodes of the CPU (docs/decisions/0002).
  bool light = false;
  std::vector<Typing> typings = {};  // of an npu:: operator; the first that matches a node applies
  KernelFactory make = nullptr;
  // Returns "" when the node is fully implemented, else the reason, as shown to users. dtypes and arity have already
  // been checked against the ArgDefs.
  std::function<std::string(const NodeView&)> unsupported = {};
};

class OpRegistry {
 public:
  // The process's registry; its first look-up loads the kernel library.
  static OpRegistry& Instance();
  // `load` is called at the first look-up and registers the operators.
  explicit OpRegistry(std::function<void()> load);
  ~OpRegistry();
  OpRegistry(const OpRegistry&) = delete;
  OpRegistry& operator=(const OpRegistry&) = delete;

  void Add(OpDef def);        // standard ONNX operators
  void AddSchema(OpDef def);  // generated: npu:: signatures
  void AddKernel(const std::string& domain, const std::string& type, KernelFactory make);  // joined to its schema
  // Nodes of type `alias` with `input_count` inputs (0: any number) run the kernel of `type`. The schema of `alias` is
  // added separately.
  void AddAlias(const std::string& domain, const std::string& alias, size_t input_count, const std::string& type);
  void AddUnsupported(const std::string& domain, const std::string& type,
                      std::function<std::string(const NodeView&)> unsupported);

  // Null when no such operator, version or kernel exists. Throws Error(kInternal) when registrations contradict each
  // other.
  const OpDef* Find(const std::string& domain, const std::string& type, int since_version) const;
  // Like Find, for the newest version that has a kernel.
  const OpDef* FindNewest(const std::string& domain, const std::string& type) const;
  // Only operators that have a kernel.
  std::vector<const OpDef*> All() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Checks a node against its definition: arity, dtypes, then `unsupported`. "" when claimable.
std::string WhyUnsupported(const OpDef& def, const NodeView& node);

struct Registrar {
  template <class F>
  explicit Registrar(F&& f) {
    f(OpRegistry::Instance());
  }
};

template <class K>
std::unique_ptr<Kernel> MakeKernel(const KernelInfo& info) {
  return std::make_unique<K>(info);
}

}  // namespace npu

#define NPU_CONCAT_INNER(a, b) a##b
#define NPU_CONCAT(a, b) NPU_CONCAT_INNER(a, b)

// NPU_KERNEL(NPURmsNorm, RmsNormKernel): the kernel of an npu:: operator, whose signature comes from its definition
// (.py).
#define NPU_KERNEL(type, Class)                                          \
  static const ::npu::Registrar NPU_CONCAT(npu_registrar_, __COUNTER__)( \
      [](::npu::OpRegistry& registry) { registry.AddKernel("npu", #type, &::npu::MakeKernel<Class>); })

// NPU_ONNX_KERNEL(def): a standard operator with its whole OpDef.
#define NPU_ONNX_KERNEL(...)                \
  static const ::npu::Registrar NPU_CONCAT( \
      npu_registrar_, __COUNTER__)([](::npu::OpRegistry& registry) { registry.Add(__VA_ARGS__); })
