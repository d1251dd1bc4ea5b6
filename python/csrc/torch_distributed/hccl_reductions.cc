// The collectives of `hccl` that reduce.
#include <ATen/ops/cat.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "python/csrc/torch_distributed/hccl_backend.h"
#include "python/csrc/torch_distributed/rank_tensors.h"

namespace npu::distributed {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

// What the host's group is asked to reduce, and what is done to each result. gloo has no average and no factors: an
// average is the sum and a division by the number of ranks behind it, and terms are multiplied before their sum.
template <class Options>
struct Reduction {
  Options host;
  std::function<void(at::Tensor&)> adapt;
};

// `exchange` has staged the terms, of which `term` is one.
template <class Options>
Reduction<Options> ReductionOf(Exchange& exchange, const Options& asked, const at::Tensor& term, int ranks) {
  Reduction<Options> reduction{asked, {}};
  if (asked.reduceOp == ReduceOp::PREMUL_SUM) {
    TORCH_CHECK(term.is_floating_point(), "[hccl] ", exchange.op(), " expected floats to multiply for PREMUL_SUM, got ",
                term.scalar_type());
    const auto* given = static_cast<const c10d::PreMulSumSupplement*>(asked.reduceOp.supplement_.get());
    TORCH_CHECK(given != nullptr, "[hccl] ", exchange.op(), " expected a factor with PREMUL_SUM, got none");
    const double factor =
        given->tensor_factor.defined() ? given->tensor_factor.item().toDouble() : given->double_factor;
    exchange.Prepare([factor](at::Tensor& wire) { wire.mul_(factor); });
    reduction.host.reduceOp = ReduceOp::SUM;
  }
  if (asked.reduceOp == ReduceOp::AVG) {
    reduction.host.reduceOp = ReduceOp::SUM;
    reduction.adapt = [ranks](at::Tensor& sum) {
      if (sum.is_floating_point() || sum.is_complex())
        sum.div_(ranks);
      else
        sum.floor_divide_(ranks);
    };
  }
  return reduction;
}

int64_t CodeOf(const ReduceOp& op) { return static_cast<int64_t>(op.op_); }

int64_t ElementsOf(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

}  // namespace

HcclBackend::Handle HcclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  auto exchange = BeginExchange("all_reduce", tensors, Wire::kNumbers);
  auto [reduced, adapt] = ReductionOf(*exchange, options, tensors[0], getSize());
  Tensors wires = exchange->Update(tensors);
  return Enqueue(
      {OpType::ALLREDUCE, CodeOf(options.reduceOp), tensors}, options.timeout, std::move(exchange),
      [wires, reduced](c10d::Backend& host) mutable { return host.allreduce(wires, reduced); }, std::move(adapt));
}

HcclBackend::Handle HcclBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  auto exchange = BeginExchange("all_reduce_coalesced", tensors, Wire::kNumbers);
  auto [reduced, adapt] = ReductionOf(*exchange, options, tensors[0], getSize());
  Tensors wires = exchange->Update(tensors);
  return Enqueue(
      {OpType::ALLREDUCE_COALESCED, CodeOf(options.reduceOp), tensors}, options.timeout, std::move(exchange),
      [wires, reduced](c10d::Backend& host) mutable { return host.allreduce_coalesced(wires, reduced); },
      std::move(adapt));
}

HcclBackend::Handle HcclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  auto exchange = BeginExchange("reduce", tensors, Wire::kNumbers);
  auto [reduced, adapt] = ReductionOf(*exchange, options, tensors[0], getSize());
  Tensors wires = options.rootRank == getRank() ? exchange->Update(tensors) : exchange->Send(tensors);
  return Enqueue(
      {OpType::REDUCE, CodeOf(options.reduceOp) + 16 * options.rootRank, tensors}, options.timeout, std::move(exchange),
      [wires, reduced](c10d::Backend& host) mutable { return host.reduce(wires, reduced); }, std::move(adapt));
}

HcclBackend::Handle HcclBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ReduceScatterOptions& options) {
  // Tensors that together are one term for all ranks, as NCCL's group takes them, too.
  if (inputs.size() == 1 && outputs.size() == 1 && static_cast<int>(inputs[0].size()) != getSize() &&
      ElementsOf(inputs[0]) == outputs[0].numel() * getSize()) {
    Tensors flat;
    for (const at::Tensor& part : inputs[0]) flat.push_back(part.reshape(-1));
    at::Tensor whole = flat.size() == 1 ? flat[0] : at::cat(flat);
    return _reduce_scatter_base(outputs[0], whole, options);
  }
  if (inputs.size() == 1 && outputs.size() == 1 && IsUneven(inputs[0], outputs[0]))
    return ReduceScatterUneven(outputs, inputs[0], options);
  auto exchange = BeginExchange("reduce_scatter", outputs, Wire::kNumbers);
  auto [reduced, adapt] = ReductionOf(*exchange, options, outputs[0], getSize());
  std::vector<Tensors> sent;
  for (const Tensors& parts : inputs) {
    CheckParts("reduce_scatter", parts, outputs[0], getSize());
    sent.push_back(exchange->Send(parts));
  }
  Tensors received = exchange->Receive(outputs);
  return Enqueue(
      {OpType::REDUCE_SCATTER, CodeOf(options.reduceOp), outputs}, options.timeout, std::move(exchange),
      [received, sent, reduced](c10d::Backend& host) mutable { return host.reduce_scatter(received, sent, reduced); },
      std::move(adapt));
}

HcclBackend::Handle HcclBackend::ReduceScatterUneven(const Tensors& outputs, const Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  auto exchange = BeginExchange("reduce_scatter", outputs, Wire::kNumbers);
  CheckUneven("reduce_scatter", inputs, outputs[0], getRank(), getSize());
  auto [reduced, adapt] = ReductionOf(*exchange, options, outputs[0], getSize());
  Tensors from = exchange->Send(inputs), to = exchange->Receive(outputs);
  const auto self = static_cast<size_t>(getRank());
  return Enqueue(
      {OpType::REDUCE_SCATTER, CodeOf(options.reduceOp), inputs}, options.timeout, std::move(exchange),
      [from, to, self, reduced](c10d::Backend& host) mutable {
        for (size_t rank = 0; rank < from.size(); ++rank) {
          Tensors part{from[rank]};
          c10d::ReduceOptions of_rank;
          of_rank.reduceOp = reduced.reduceOp;
          of_rank.rootRank = static_cast<int64_t>(rank);
          of_rank.timeout = reduced.timeout;
          host.reduce(part, of_rank)->wait();
        }
        to[0].copy_(from[self]);
        return Handle();
      },
      std::move(adapt));
}

HcclBackend::Handle HcclBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) {
  auto exchange = BeginExchange("reduce_scatter_tensor", input, Wire::kNumbers);
  CheckWhole("reduce_scatter_tensor", input, output, getSize());
  auto [reduced, adapt] = ReductionOf(*exchange, options, input, getSize());
  at::Tensor from = exchange->Send(input), to = exchange->Receive(output);
  return Enqueue(
      {OpType::_REDUCE_SCATTER_BASE, CodeOf(options.reduceOp), {output}}, options.timeout, std::move(exchange),
      [from, to, reduced](c10d::Backend& host) mutable { return host._reduce_scatter_base(to, from, reduced); },
      std::move(adapt));
}

HcclBackend::Handle HcclBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::ReduceScatterOptions& options) {
  auto exchange = BeginExchange("reduce_scatter_tensor", inputs, Wire::kNumbers);
  TORCH_CHECK(outputs.size() == inputs.size(), "[hccl] reduce_scatter_tensor expected as many outputs as inputs, ",
              inputs.size(), ", got ", outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) CheckWhole("reduce_scatter_tensor", inputs[i], outputs[i], getSize());
  auto [reduced, adapt] = ReductionOf(*exchange, options, inputs[0], getSize());
  Tensors from = exchange->Send(inputs), to = exchange->Receive(outputs);
  return Enqueue(
      {OpType::REDUCE_SCATTER_TENSOR_COALESCED, CodeOf(options.reduceOp), outputs}, options.timeout,
      std::move(exchange),
      [from, to, reduced](c10d::Backend& host) mutable {
        return host.reduce_scatter_tensor_coalesced(to, from, reduced);
      },
      std::move(adapt));
}

}  // namespace npu::distributed
