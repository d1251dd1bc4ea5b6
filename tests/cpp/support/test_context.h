// Runs one operator of the registry on host tensors, as the provider and the eager calls do:
//
//   HostTensor y = RunOp("Add", {a, b})[0];
//   std::vector<HostTensor> out = RunOp("npu::NPURmsNorm", {x, gamma}, {.attributes = {{"epsilon", 1e-6}}, .outputs =
//   2});
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/kernel_api.h"
#include "ep/runtime/shared_matrix.h"
#include "tests/cpp/support/host_tensor.h"

namespace npu::test {

class TestContext final : public OpContext {
 public:
  TestContext(std::vector<HostTensor> inputs, std::vector<bool> requested, Stream& stream)
      : inputs_(std::move(inputs)), outputs_(requested.size()), requested_(std::move(requested)), stream_(stream) {}

  size_t input_count() const override { return inputs_.size(); }
  size_t output_count() const override { return outputs_.size(); }
  TensorView Input(size_t i) override { return i < inputs_.size() ? inputs_[i].view() : TensorView{}; }
  bool OutputRequested(size_t i) const override { return i < requested_.size() && requested_[i]; }
  TensorView Output(size_t i, DType dtype, const Shape& shape) override {
    if (!OutputRequested(i)) return TensorView{};
    if (const auto memory = memory_.find(i); memory != memory_.end()) {
      outputs_[i] = memory->second.As(dtype, shape);
    } else {
      outputs_[i] = aliases_.count(i) ? inputs_[aliases_[i]] : HostTensor(dtype, shape);
    }
    return outputs_[i].view();
  }
  void* Workspace(size_t bytes) override {
    workspaces_.emplace_back(DType::kUInt8, Shape{static_cast<int64_t>(bytes)});
    return workspaces_.back().view().data;
  }
  Stream& stream() override { return stream_; }

  // Output i gets the buffer of `input`, as in an in-place call.
  void Alias(size_t output, size_t input) { aliases_[output] = input; }
  // Output i gets this memory, which may be an input's, too.
  void Place(size_t output, HostTensor memory) { memory_[output] = std::move(memory); }
  const std::vector<HostTensor>& outputs() const { return outputs_; }

 private:
  std::vector<HostTensor> inputs_, outputs_, workspaces_;
  std::vector<bool> requested_;
  std::map<size_t, size_t> aliases_;
  std::map<size_t, HostTensor> memory_;
  Stream& stream_;
};

struct RunOptions {
  std::map<std::string, Attributes::Value> attributes = {};
  std::vector<bool> requested = {};  // which outputs are used; empty: the first `outputs`
  size_t outputs = 1;
  int since_version = 0;                                // 0: the newest in the registry
  DType float32_products = DType::kFloat32;             // as in KernelInfo
  std::vector<std::optional<Shape>> input_shapes = {};  // as in KernelInfo
  std::vector<size_t> prepack = {};                     // inputs offered as constants; absent if the kernel keeps them
  std::map<size_t, size_t> alias = {};                  // output -> input
  std::map<size_t, HostTensor> memory = {};             // output -> where it is written
};

// A kernel that can run repeatedly, like a node of a session.
class TestNode {
 public:
  // `type` is "MatMul" or "npu::NPULinear".
  explicit TestNode(const std::string& type, const RunOptions& options = {}, size_t input_count = 0)
      : options_(options), stream_(Runtime::Instance().device(0).default_stream()) {
    const size_t colons = type.find("::");
    const std::string domain = colons == std::string::npos ? "" : type.substr(0, colons);
    const std::string name = colons == std::string::npos ? type : type.substr(colons + 2);
    const OpDef* def = nullptr;
    KernelInfo info;
    constexpr int kNewestOpset = 64;
    for (int v = options.since_version ? options.since_version : kNewestOpset;
         !def && v >= (options.since_version ? options.since_version : 1); --v) {
      def = OpRegistry::Instance().Find(domain, name, v);
      info.since_version = v;
    }
    NPU_CHECK(def, "the registry has no kernel for ", type);
    info.op_type = name;
    info.input_count = input_count;
    info.output_count = options.requested.empty() ? options.outputs : options.requested.size();
    for (const auto& [key, value] : options.attributes) info.attributes.Set(key, value);
    info.float32_products = options.float32_products;
    info.input_shapes = options.input_shapes;
    kernel_ = def->make(info);
  }

  // Offers a constant as a session does; true if the kernel keeps its own form of it.
  bool PrePack(size_t input, const HostTensor& constant) { return kernel_->PrePack(input, constant.view(), stream_); }

  // Reorders a matrix into the panels that several kernels share, or declares that it is; false if the kernel cannot
  // read them.
  bool UsePanels(size_t input, HostTensor& matrix, bool reorder) {
    auto* reader = dynamic_cast<SharedMatrixReader*>(kernel_.get());
    if (reader == nullptr || reader->PanelsOf(input, matrix.view()) == SharedMatrixReader::Panels::kNo) return false;
    reader->UsePanels(input, matrix.view(), reorder, stream_);
    return true;
  }

  std::vector<HostTensor> Run(std::vector<HostTensor> inputs) const {
    std::vector<bool> requested = options_.requested;
    if (requested.empty()) requested.assign(options_.outputs, true);
    TestContext context(std::move(inputs), std::move(requested), stream_);
    for (const auto& [output, input] : options_.alias) context.Alias(output, input);
    for (const auto& [output, memory] : options_.memory) context.Place(output, memory);
    kernel_->Compute(context);
    stream_.Synchronize();
    return context.outputs();
  }

 private:
  RunOptions options_;
  Stream& stream_;
  std::unique_ptr<Kernel> kernel_;
};

inline std::vector<HostTensor> RunOp(const std::string& type, std::vector<HostTensor> inputs,
                                     const RunOptions& options = {}) {
  TestNode node(type, options, inputs.size());
  for (size_t i : options.prepack)
    if (node.PrePack(i, inputs.at(i))) inputs.at(i) = HostTensor();
  return node.Run(std::move(inputs));
}

}  // namespace npu::test
