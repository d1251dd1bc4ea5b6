// The collectives of `hccl` that move data.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "python/csrc/torch_distributed/hccl_backend.h"
#include "python/csrc/torch_distributed/rank_tensors.h"

namespace npu::distributed {
namespace {

using c10d::OpType;

// The words of torch's own groups, which scripts look for.
constexpr const char* kSplitsDiffer = "Split sizes doesn't match total dim 0 size";

// Splits of the first dimension in bytes, which the transport sees.
std::vector<int64_t> BytesOf(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks,
                             const char* what) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0), bytes = static_cast<int64_t>(tensor.nbytes());
  if (splits.empty()) {
    TORCH_CHECK(rows % ranks == 0, "[hccl] all_to_all expected a first dimension of the ", what, " that ", ranks,
                " ranks divide, got ", rows);
    return std::vector<int64_t>(static_cast<size_t>(ranks), bytes / ranks);
  }
  TORCH_CHECK(static_cast<int>(splits.size()) == ranks, "[hccl] all_to_all expected ", ranks, " sizes of the ", what,
              ", got ", splits.size());
  int64_t sum = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK(split >= 0 && split <= rows, "[hccl] all_to_all expected sizes from 0 to ", rows, " for the ", what,
                ", got ", split);
    sum += split;
  }
  TORCH_CHECK(sum == rows, kSplitsDiffer,
              ": [hccl] all_to_all expected sizes that add up to the first dimension of the ", what, ", ", rows,
              ", got ", sum);
  std::vector<int64_t> in_bytes;
  for (const int64_t split : splits) in_bytes.push_back(rows == 0 ? 0 : split * (bytes / rows));
  return in_bytes;
}

std::vector<int64_t> BytesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
  return bytes;
}

}  // namespace

HcclBackend::Handle HcclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  auto exchange = BeginExchange("broadcast", tensors);
  Tensors wires = options.rootRank == getRank() ? exchange->Send(tensors) : exchange->Receive(tensors);
  return Enqueue({OpType::BROADCAST, options.rootRank, tensors}, options.timeout, std::move(exchange),
                 [wires, options](c10d::Backend& host) mutable { return host.broadcast(wires, options); });
}

HcclBackend::Handle HcclBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  auto exchange = BeginExchange("all_gather", inputs);
  TORCH_CHECK(inputs.size() == 1 && outputs.size() == 1,
              "[hccl] all_gather expected one input and its list of outputs, got ", inputs.size(), " and ",
              outputs.size());
  if (IsUneven(outputs[0], inputs[0])) return GatherUneven(outputs[0], inputs, options);
  CheckParts("all_gather", outputs[0], inputs[0], getSize());
  Tensors from = exchange->Send(inputs);
  std::vector<Tensors> to{exchange->Receive(outputs[0])};
  return Enqueue({OpType::ALLGATHER, 0, inputs}, options.timeout, std::move(exchange),
                 [from, to, options](c10d::Backend& host) mutable { return host.allgather(to, from, options); });
}

HcclBackend::Handle HcclBackend::GatherUneven(const Tensors& outputs, const Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  auto exchange = BeginExchange("all_gather", inputs);
  CheckUneven("all_gather", outputs, inputs[0], getRank(), getSize());
  Tensors from = exchange->Send(inputs), to = exchange->Receive(outputs);
  const auto self = static_cast<size_t>(getRank());
  return Enqueue({OpType::ALLGATHER, 2, outputs}, options.timeout, std::move(exchange),
                 [from, to, self, options](c10d::Backend& host) mutable {
                   to[self].copy_(from[0]);
                   for (size_t rank = 0; rank < to.size(); ++rank) {
                     Tensors part{to[rank]};
                     c10d::BroadcastOptions of_rank;
                     of_rank.rootRank = static_cast<int64_t>(rank);
                     of_rank.timeout = options.timeout;
                     host.broadcast(part, of_rank)->wait();
                   }
                   return Handle();
                 });
}

HcclBackend::Handle HcclBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& options) {
  auto exchange = BeginExchange("all_gather_coalesced", inputs);
  TORCH_CHECK(static_cast<int>(outputs.size()) == getSize(), "[hccl] all_gather_coalesced expected ", getSize(),
              " lists of outputs, one of each rank, got ", outputs.size());
  Tensors from = exchange->Send(inputs);
  std::vector<Tensors> to;
  for (const Tensors& of_rank : outputs) to.push_back(exchange->Receive(of_rank));
  return Enqueue(
      {OpType::ALLGATHER, 1, inputs}, options.timeout, std::move(exchange),
      [from, to, options](c10d::Backend& host) mutable { return host.allgather_coalesced(to, from, options); });
}

HcclBackend::Handle HcclBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) {
  auto exchange = BeginExchange("all_gather_into_tensor", input, Wire::kBytes);
  CheckWhole("all_gather_into_tensor", output, input, getSize());
  at::Tensor from = exchange->Send(input), to = exchange->Receive(output);
  return Enqueue({OpType::_ALLGATHER_BASE, 0, {input}}, options.timeout, std::move(exchange),
                 [from, to, options](c10d::Backend& host) mutable { return host._allgather_base(to, from, options); });
}

HcclBackend::Handle HcclBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::AllgatherOptions& options) {
  auto exchange = BeginExchange("all_gather_into_tensor", inputs);
  TORCH_CHECK(outputs.size() == inputs.size(), "[hccl] all_gather_into_tensor expected as many outputs as inputs, ",
              inputs.size(), ", got ", outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) CheckWhole("all_gather_into_tensor", outputs[i], inputs[i], getSize());
  Tensors from = exchange->Send(inputs), to = exchange->Receive(outputs);
  return Enqueue({OpType::COALESCED, 0, inputs}, options.timeout, std::move(exchange),
                 [from, to, options](c10d::Backend& host) mutable {
                   return host.allgather_into_tensor_coalesced(to, from, options);
                 });
}

HcclBackend::Handle HcclBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::GatherOptions& options) {
  auto exchange = BeginExchange("gather", inputs);
  std::vector<Tensors> received;
  Tensors sent = exchange->Send(inputs);
  for (const Tensors& parts : outputs) {
    CheckParts("gather", parts, inputs[0], getSize());
    received.push_back(exchange->Receive(parts));
  }
  return Enqueue(
      {OpType::GATHER, options.rootRank, inputs}, options.timeout, std::move(exchange),
      [received, sent, options](c10d::Backend& host) mutable { return host.gather(received, sent, options); });
}

HcclBackend::Handle HcclBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ScatterOptions& options) {
  auto exchange = BeginExchange("scatter", outputs);
  std::vector<Tensors> sent;
  for (const Tensors& parts : inputs) {
    CheckParts("scatter", parts, outputs[0], getSize());
    sent.push_back(exchange->Send(parts));
  }
  Tensors received = exchange->Receive(outputs);
  return Enqueue(
      {OpType::SCATTER, options.rootRank, outputs}, options.timeout, std::move(exchange),
      [received, sent, options](c10d::Backend& host) mutable { return host.scatter(received, sent, options); });
}

HcclBackend::Handle HcclBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) {
  auto exchange = BeginExchange("all_to_all", input, Wire::kBytes);
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "[hccl] all_to_all expected an output of ",
              input.scalar_type(), ", got ", output.scalar_type());
  std::vector<int64_t> out_bytes = BytesOf(output, output_splits, getSize(), "output");
  std::vector<int64_t> in_bytes = BytesOf(input, input_splits, getSize(), "input");
  at::Tensor from = exchange->Send(input), to = exchange->Receive(output);
  return Enqueue({OpType::ALLTOALL_BASE, TypeOf(input), {}, in_bytes, out_bytes}, options.timeout, std::move(exchange),
                 [from, to, out_bytes, in_bytes, options](c10d::Backend& host) mutable {
                   return host.alltoall_base(to, from, out_bytes, in_bytes, options);
                 });
}

HcclBackend::Handle HcclBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  auto exchange = BeginExchange("all_to_all", inputs);
  for (const Tensors& list : {outputs, inputs})
    TORCH_CHECK(static_cast<int>(list.size()) == getSize(), "[hccl] all_to_all expected ", getSize(),
                " tensors, one of each rank, got ", list.size());
  Tensors from = exchange->Send(inputs), to = exchange->Receive(outputs);
  std::vector<int64_t> sent = BytesOf(inputs), received = BytesOf(outputs);
  return Enqueue({OpType::ALLTOALL, TypeOf(inputs[0]), {}, sent, received}, options.timeout, std::move(exchange),
                 [from, to, sent, received, options](c10d::Backend& host) mutable {
                   // gloo's own takes lists of equal sizes only.
                   at::Tensor whole = at::cat(from);
                   at::Tensor parts =
                       at::empty({std::accumulate(received.begin(), received.end(), int64_t{0})}, at::kByte);
                   const Tensors of_rank = parts.split_with_sizes(received);
                   host.alltoall_base(parts, whole, received, sent, options)->wait();  // it takes the sizes away
                   for (size_t rank = 0; rank < to.size(); ++rank) to[rank].copy_(of_rank[rank]);
                   return Handle();
                 });
}

}  // namespace npu::distributed
