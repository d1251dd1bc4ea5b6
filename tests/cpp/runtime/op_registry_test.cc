#include "ep/runtime/op_registry.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "ep/runtime/error.h"

namespace npu {
namespace {

class NoKernel final : public Kernel {
 public:
  explicit NoKernel(const KernelInfo&) {}
  void Compute(OpContext&) const override {}
};

OpDef Definition(const std::string& domain, const std::string& type, int since = 1, int until = 1) {
  OpDef def;
  def.domain = domain;
  def.type = type;
  def.since = since;
  def.until = until;
  def.inputs = {{"x", kFloats}, {"scale", kFloats, /*optional=*/true}};
  def.outputs = {{"y", kFloats}};
  return def;
}

OpDef WithKernel(OpDef def) {
  def.make = &MakeKernel<NoKernel>;
  return def;
}

// The error of the first look-up after these registrations.
std::string Problem(void (*registrations)(OpRegistry&)) {
  OpRegistry registry([] {});
  registrations(registry);
  try {
    registry.Find("", "Any", 1);
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kInternal);
    return e.what();
  }
  return "";
}

NodeView Node(std::vector<DType> inputs) {
  NodeView node;
  node.inputs = std::move(inputs);
  node.output_count = 1;
  return node;
}

}  // namespace

TEST_CASE("a version is found in the range that implements it") {
  OpRegistry registry([] {});
  registry.Add(WithKernel(Definition("", "Add", 7, 12)));
  registry.Add(WithKernel(Definition("ai.onnx", "Add", 13, 14)));
  CHECK(registry.Find("", "Add", 6) == nullptr);
  REQUIRE(registry.Find("", "Add", 7) != nullptr);
  CHECK(registry.Find("", "Add", 12)->until == 12);
  CHECK(registry.Find("ai.onnx", "Add", 13)->since == 13);
  CHECK(registry.Find("", "Add", 15) == nullptr);
  CHECK(registry.Find("npu", "Add", 13) == nullptr);
  CHECK(registry.All().size() == 2);
}

TEST_CASE("a kernel joins its schema in either order, and a schema without a kernel is not found") {
  for (bool kernel_first : {true, false}) {
    OpRegistry registry([] {});
    registry.AddSchema(Definition("npu", "Later"));
    CHECK(registry.Find("npu", "Later", 1) == nullptr);
    if (kernel_first) registry.AddKernel("npu", "Op", &MakeKernel<NoKernel>);
    registry.AddSchema(Definition("npu", "Op"));
    if (!kernel_first) registry.AddKernel("npu", "Op", &MakeKernel<NoKernel>);
    registry.AddUnsupported("npu", "Op", [](const NodeView&) { return std::string("not today"); });
    const OpDef* def = registry.Find("npu", "Op", 1);
    REQUIRE(def != nullptr);
    CHECK(WhyUnsupported(*def, Node({DType::kFloat32})) == "not today");
    CHECK(registry.All() == std::vector<const OpDef*>{def});
    registry.AddKernel("npu", "Later", &MakeKernel<NoKernel>);  // also after a look-up
    CHECK(registry.Find("npu", "Later", 1) != nullptr);
    CHECK(registry.Find("npu", "Op", 1) == def);
  }
}

TEST_CASE("contradictory registrations are reported at the first look-up") {
  CHECK(Problem([](OpRegistry&) {}) == "");
  CHECK(Problem([](OpRegistry& r) { r.AddKernel("npu", "Op", &MakeKernel<NoKernel>); }) ==
        "operator npu::Op has a kernel but no definition; add contrib_ops/<family>/<op>.py beside it");
  CHECK(Problem([](OpRegistry& r) {
          r.AddSchema(Definition("npu", "Op"));
          r.AddSchema(Definition("npu", "Op"));
        }) == "operator npu::Op was defined twice");
  CHECK(Problem([](OpRegistry& r) {
          r.AddSchema(Definition("npu", "Op"));
          r.AddKernel("npu", "Op", &MakeKernel<NoKernel>);
          r.AddKernel("npu", "Op", &MakeKernel<NoKernel>);
        }) == "operator npu::Op has two kernels");
  CHECK(Problem([](OpRegistry& r) { r.Add(Definition("", "Op")); }) == "operator Op was registered without a kernel");
  CHECK(Problem([](OpRegistry& r) {
          r.Add(WithKernel(Definition("", "Op", 1, 7)));
          r.Add(WithKernel(Definition("", "Op", 7, 9)));
        }) == "operator Op was registered twice for version 7");
  CHECK(Problem([](OpRegistry& r) { r.Add(WithKernel(Definition("", "Op", 3, 2))); }) ==
        "operator Op: expected since <= until, got 3 and 2");
}

TEST_CASE("a load that failed is tried again") {
  int loads = 0;
  OpRegistry registry([&] {
    if (++loads == 1) throw Error(ErrorCode::kInternal, "not there");
  });
  CHECK(loads == 0);
  CHECK_THROWS_WITH(registry.All(), "not there");
  CHECK(registry.All().empty());
  CHECK(registry.All().empty());
  CHECK(loads == 2);
}

TEST_CASE("a node is claimed only when arity, types and attributes fit") {
  OpDef def = WithKernel(Definition("npu", "Op"));
  def.attributes = {{"axis", AttrDef::Kind::kInt, /*required=*/true, std::nullopt}};
  NodeView good = Node({DType::kFloat32, DType::kUndefined});
  good.attributes.Set("axis", int64_t{1});
  CHECK(WhyUnsupported(def, good) == "");

  const auto why = [&](std::vector<DType> inputs, size_t outputs = 1) {
    NodeView node = good;
    node.inputs = std::move(inputs);
    node.output_count = outputs;
    return WhyUnsupported(def, node);
  };
  CHECK(why({DType::kBFloat16}) == "");
  CHECK(why({}) == "expected input x, got none");
  CHECK(why({DType::kUndefined}) == "expected input x, got none");
  CHECK(why({DType::kFloat32, DType::kFloat32, DType::kFloat32}) == "expected at most 2 inputs, got 3");
  CHECK(why({DType::kInt8}) == "input x: expected float32, float16, bfloat16, got int8");
  CHECK(why({static_cast<DType>(63)}) != "");
  CHECK(why({DType::kFloat32}, 2) == "expected at most 1 outputs, got 2");
  CHECK(WhyUnsupported(def, Node({DType::kFloat32})) == "expected attribute axis, got none");
  CHECK(WhyUnsupported(Definition("npu", "Op"), good) == "the operator has no kernel");

  def.inputs.back().variadic = true;
  CHECK(why({DType::kFloat32, DType::kFloat32, DType::kFloat16, DType::kFloat32}) == "");
  CHECK(why({DType::kFloat32, DType::kFloat32, DType::kInt8}) != "");
  def.min_inputs = 3;
  CHECK(why({DType::kFloat32, DType::kFloat32}) == "expected at least 3 inputs, got 2");
}

TEST_CASE("the kernel library registers the operators it was built with") {
  const std::vector<const OpDef*> all = OpRegistry::Instance().All();
  CHECK(all.size() > 1);
  std::set<const OpDef*> distinct(all.begin(), all.end());
  CHECK(distinct.size() == all.size());
  for (const OpDef* def : all) {
    CAPTURE(def->type);
    CHECK(static_cast<bool>(def->make));
    CHECK(OpRegistry::Instance().Find(def->domain, def->type, def->since) == def);
  }
}

}  // namespace npu
