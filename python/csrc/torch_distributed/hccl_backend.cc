#include "python/csrc/torch_distributed/hccl_backend.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ep/runtime/current.h"
#include "ep/runtime/graph.h"

namespace npu::distributed {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = HcclBackend::Tensors;

std::unique_ptr<Exchange> Begin(const char* op, const at::Tensor& first, Wire wire) {
  TORCH_CHECK(first.device().type() == c10::DeviceType::PrivateUse1, "[hccl] ", op,
              " expected npu tensors, got one on ", first.device(), "; use a group of \"cpu:gloo,npu:hccl\" for both");
  Graph::RefuseInCapture(CurrentStream(first.device().index()), "a collective");
  return std::make_unique<Exchange>(op, first.device(), wire);
}

std::unique_ptr<Exchange> Begin(const char* op, const Tensors& tensors, Wire wire = Wire::kBytes) {
  TORCH_CHECK(!tensors.empty(), "[hccl] ", op, " expected at least one tensor, got none");
  return Begin(op, tensors[0], wire);
}

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

int64_t ElementsOf(const Tensors& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

// Whether a list has a tensor of another size than `whole`.
bool IsUneven(const Tensors& parts, const at::Tensor& whole) {
  return std::any_of(parts.begin(), parts.end(), [&](const at::Tensor& part) { return part.numel() != whole.numel(); });
}

// Of a list of tensors of several sizes, the one of this rank is like `own`.
void CheckUneven(const char* op, const Tensors& parts, const at::Tensor& own, int rank, int ranks) {
  TORCH_CHECK(static_cast<int>(parts.size()) == ranks, "[hccl] ", op, " expected ", ranks,
              " tensors, one of each rank, got ", parts.size());
  const at::Tensor& mine = parts[static_cast<size_t>(rank)];
  TORCH_CHECK(mine.numel() == own.numel(), "[hccl] ", op, " expected a tensor of ", own.numel(), " elements for rank ",
              rank, ", got ", mine.numel());
  for (const at::Tensor& part : parts)
    TORCH_CHECK(part.scalar_type() == own.scalar_type(), "[hccl] ", op, " expected tensors of ", own.scalar_type(),
                ", got one of ", part.scalar_type());
}

int64_t CodeOf(const ReduceOp& op) { return static_cast<int64_t>(op.op_); }

// A collective writes whole tensors of one dtype and size per rank.
void CheckParts(const char* op, const Tensors& parts, const at::Tensor& whole, int ranks) {
  TORCH_CHECK(static_cast<int>(parts.size()) == ranks, "[hccl] ", op, " expected ", ranks,
              " tensors, one of each rank, got ", parts.size());
  for (const at::Tensor& part : parts)
    TORCH_CHECK(part.scalar_type() == whole.scalar_type() && part.numel() == whole.numel(), "[hccl] ", op,
                " expected tensors of ", whole.numel(), " elements of ", whole.scalar_type(), ", got ", part.numel(),
                " of ", part.scalar_type());
}

void CheckWhole(const char* op, const at::Tensor& whole, const at::Tensor& part, int ranks) {
  TORCH_CHECK(whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * ranks, "[hccl] ", op,
              " expected ", part.numel() * ranks, " elements of ", part.scalar_type(), " for ", ranks, " ranks, got ",
              whole.numel(), " of ", whole.scalar_type());
}

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

std::vector<int64_t> BytesOf(const Tensors& tensors) {
  std::vector<int64_t> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
  return bytes;
}

int64_t TypeOf(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.scalar_type()); }

// What a sender tells a receiver of one tensor.
at::Tensor HeaderOf(const at::Tensor& tensor) {
  at::Tensor header = at::empty({2}, at::kLong);
  header.mutable_data_ptr<int64_t>()[0] = tensor.numel();
  header.mutable_data_ptr<int64_t>()[1] = TypeOf(tensor);
  return header;
}

int64_t BytesOf(const at::Tensor& header) {
  const int64_t* fields = header.const_data_ptr<int64_t>();
  return fields[0] * static_cast<int64_t>(c10::elementSize(static_cast<at::ScalarType>(fields[1])));
}

constexpr int kAnyPeer = -1;

JobThread& ThreadOf(std::map<int, JobThread>& threads, int peer, const char* name) {
  return threads.try_emplace(peer, name).first->second;
}

// Headers have tags of their own: several receipts from one peer begin before the first of them asks for its data, and
// the transport hands on what has one tag in the order in which it was asked for.
int HeaderTag(int tag, const char* call) {
  constexpr int kTags = 1 << 30;
  TORCH_CHECK(tag >= 0 && tag < kTags, "[hccl] ", call, " expected a tag below ", kTags, ", got ", tag);
  return kTags + tag;
}

std::string Describe(const at::Tensor& header) {
  const int64_t* fields = header.const_data_ptr<int64_t>();
  return c10::str(fields[0], " elements of ", static_cast<at::ScalarType>(fields[1]));
}

}  // namespace

HcclBackend::HcclBackend(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store> store,
                         std::string name, c10::intrusive_ptr<Options> options, std::chrono::milliseconds timeout,
                         GroupCommunicator::ConnectHost connect)
    : Backend(host->getRank(), host->getSize()),
      host_(std::move(host)),
      options_(std::move(options)),
      timeout_(timeout),
      notes_(store, getRank(), getSize()),
      roll_call_(std::make_shared<RollCall>(std::move(store), getRank(), getSize())),
      connect_(std::move(connect)),
      name_(std::move(name)) {
  host_->setTimeout(TimeOfExchange(timeout));
  MakeOperators();
}

void HcclBackend::MakeOperators() {
  operators_ =
      std::make_shared<GroupCommunicator>(name_, getRank(), getSize(), connect_, timeout_.load(), roll_call_, notes_);
  Communicators::Add(operators_);
}

void HcclBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  host_->setTimeout(TimeOfExchange(timeout));
  const std::lock_guard lock(naming_);
  operators_->SetTimeout(timeout);
}

std::string HcclBackend::TakeName(bool connect) {
  const std::lock_guard lock(naming_);
  name_taken_ = name_taken_ || connect;
  return name_taken_ ? name_ : "";
}

void HcclBackend::SetName(const std::string& name) {
  constexpr size_t kMostBytes = 127;
  TORCH_CHECK(!name.empty() && name.size() <= kMostBytes, "[hccl] _set_hccl_comm_name expected a name of 1 to ",
              kMostBytes, " bytes, got ", name.size());
  const std::lock_guard lock(naming_);
  if (name_taken_ && name == name_) return;
  TORCH_CHECK(!name_taken_, "[hccl] _set_hccl_comm_name expected a group that is not named yet, got '", name,
              "' for one that has the name '", name_, "'");
  name_ = name;
  name_taken_ = true;
  MakeOperators();
}

HcclBackend::Handle HcclBackend::Enqueue(Signature signature, std::chrono::milliseconds timeout,
                                         std::unique_ptr<Exchange> exchange, Start start, Adapt adapt) {
  exchange->Record();
  const std::chrono::milliseconds limit = timeout == c10d::kUnsetTimeout ? timeout_.load() : timeout;
  auto work = c10::make_intrusive<CollectiveWork>(std::move(exchange), signature.type, getRank(), getSize(),
                                                  c10::str(++collectives_so_far_), limit, roll_call_);
  collectives_.Add(
      [this, work, limit, signature = std::move(signature), start = std::move(start), adapt = std::move(adapt)] {
        work->Begin({});
        work->End(
            [&] {
              CheckAgreement(*host_, signature, TimeOfExchange(limit));
              return start ? start(*host_) : Handle();
            },
            adapt);
      });
  return Begun(work);
}

HcclBackend::Handle HcclBackend::Begun(Handle work) {
  const std::lock_guard lock(coalescing_);
  if (coalesced_) coalesced_->push_back(work);
  return work;
}

void HcclBackend::startCoalescing() {
  const std::lock_guard lock(coalescing_);
  coalesced_.emplace();  // an error may have prevented the end of an earlier one
}

HcclBackend::Handle HcclBackend::endCoalescing() {
  const std::lock_guard lock(coalescing_);
  TORCH_CHECK(coalesced_, "[hccl] expected a start of coalescing before its end");
  auto work = c10::make_intrusive<CoalescedWork>(getRank(), std::move(*coalesced_));
  coalesced_.reset();
  return work;
}

HcclBackend::Handle HcclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  auto exchange = Begin("broadcast", tensors);
  Tensors wires = options.rootRank == getRank() ? exchange->Send(tensors) : exchange->Receive(tensors);
  return Enqueue({OpType::BROADCAST, options.rootRank, tensors}, options.timeout, std::move(exchange),
                 [wires, options](c10d::Backend& host) mutable { return host.broadcast(wires, options); });
}

HcclBackend::Handle HcclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  auto exchange = Begin("all_reduce", tensors, Wire::kNumbers);
  auto [reduced, adapt] = ReductionOf(*exchange, options, tensors[0], getSize());
  Tensors wires = exchange->Update(tensors);
  return Enqueue(
      {OpType::ALLREDUCE, CodeOf(options.reduceOp), tensors}, options.timeout, std::move(exchange),
      [wires, reduced](c10d::Backend& host) mutable { return host.allreduce(wires, reduced); }, std::move(adapt));
}

HcclBackend::Handle HcclBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  auto exchange = Begin("all_reduce_coalesced", tensors, Wire::kNumbers);
  auto [reduced, adapt] = ReductionOf(*exchange, options, tensors[0], getSize());
  Tensors wires = exchange->Update(tensors);
  return Enqueue(
      {OpType::ALLREDUCE_COALESCED, CodeOf(options.reduceOp), tensors}, options.timeout, std::move(exchange),
      [wires, reduced](c10d::Backend& host) mutable { return host.allreduce_coalesced(wires, reduced); },
      std::move(adapt));
}

HcclBackend::Handle HcclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  auto exchange = Begin("reduce", tensors, Wire::kNumbers);
  auto [reduced, adapt] = ReductionOf(*exchange, options, tensors[0], getSize());
  Tensors wires = options.rootRank == getRank() ? exchange->Update(tensors) : exchange->Send(tensors);
  return Enqueue(
      {OpType::REDUCE, CodeOf(options.reduceOp) + 16 * options.rootRank, tensors}, options.timeout, std::move(exchange),
      [wires, reduced](c10d::Backend& host) mutable { return host.reduce(wires, reduced); }, std::move(adapt));
}

HcclBackend::Handle HcclBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  auto exchange = Begin("all_gather", inputs);
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
  auto exchange = Begin("all_gather", inputs);
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
  auto exchange = Begin("all_gather_coalesced", inputs);
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
  auto exchange = Begin("all_gather_into_tensor", input, Wire::kBytes);
  CheckWhole("all_gather_into_tensor", output, input, getSize());
  at::Tensor from = exchange->Send(input), to = exchange->Receive(output);
  return Enqueue({OpType::_ALLGATHER_BASE, 0, {input}}, options.timeout, std::move(exchange),
                 [from, to, options](c10d::Backend& host) mutable { return host._allgather_base(to, from, options); });
}

HcclBackend::Handle HcclBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::AllgatherOptions& options) {
  auto exchange = Begin("all_gather_into_tensor", inputs);
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
  auto exchange = Begin("gather", inputs);
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
  auto exchange = Begin("scatter", outputs);
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
  auto exchange = Begin("reduce_scatter", outputs, Wire::kNumbers);
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
  auto exchange = Begin("reduce_scatter", outputs, Wire::kNumbers);
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
  auto exchange = Begin("reduce_scatter_tensor", input, Wire::kNumbers);
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
  auto exchange = Begin("reduce_scatter_tensor", inputs, Wire::kNumbers);
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

HcclBackend::Handle HcclBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) {
  auto exchange = Begin("all_to_all", input, Wire::kBytes);
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
  auto exchange = Begin("all_to_all", inputs);
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

// Before the data a sender tells its size, because the transport aborts the process that receives another.
HcclBackend::Handle HcclBackend::send(Tensors& tensors, int to, int tag) {
  auto exchange = Begin("send", tensors);
  TORCH_CHECK(tensors.size() == 1, "[hccl] send expected one tensor, got ", tensors.size());
  const int header_tag = HeaderTag(tag, "send");
  struct Sent {
    Tensors header, data;
    std::vector<Handle> works;
  };
  auto sent = std::make_shared<Sent>(Sent{{HeaderOf(tensors[0])}, exchange->Send(tensors), {}});
  exchange->Record();
  auto work = c10::make_intrusive<CollectiveWork>(std::move(exchange), OpType::SEND, getRank(), getSize(), "peers",
                                                  timeout_.load(), roll_call_);
  peers_begin_.Add([this, work, sent, to, tag, header_tag] {
    work->Begin([&] {
      if (to == getRank()) return own_messages_.Put(tag, {sent->header[0], sent->data[0]});
      sent->works.push_back(host_->send(sent->header, to, header_tag));
      sent->works.push_back(host_->send(sent->data, to, tag));
    });
    ThreadOf(sends_end_, to, "npu_hccl_send").Add([work, sent] {
      work->End(
          [&] {
            if (sent->works.empty()) return Handle();
            sent->works[0]->wait();
            return sent->works[1];
          },
          {});
    });
  });
  return Begun(work);
}

HcclBackend::Handle HcclBackend::recv(Tensors& tensors, int from, int tag) { return Receive(tensors, from, tag); }

HcclBackend::Handle HcclBackend::recvAnysource(Tensors& tensors, int tag) {
  return Receive(tensors, std::nullopt, tag);
}

HcclBackend::Handle HcclBackend::Receive(Tensors& tensors, std::optional<int> from, int tag) {
  auto exchange = Begin("recv", tensors);
  TORCH_CHECK(tensors.size() == 1, "[hccl] recv expected one tensor, got ", tensors.size());
  const int header_tag = HeaderTag(tag, "recv");
  struct Received {
    Tensors expected, header, data;
    Handle begun;
  };
  const at::Tensor expected = HeaderOf(tensors[0]);
  auto received =
      std::make_shared<Received>(Received{{expected}, {at::zeros_like(expected)}, exchange->Receive(tensors), {}});
  exchange->Record();
  auto work = c10::make_intrusive<CollectiveWork>(std::move(exchange), from ? OpType::RECV : OpType::RECVANYSOURCE,
                                                  getRank(), getSize(), "peers", timeout_.load(), roll_call_);
  peers_begin_.Add([this, work, received, from, tag, header_tag] {
    work->Begin([&] {
      if (from == getRank()) return;
      received->begun =
          from ? host_->recv(received->header, *from, header_tag) : host_->recvAnysource(received->header, header_tag);
    });
    JobThread& receipts_end = ThreadOf(receipts_end_, from.value_or(kAnyPeer), "npu_hccl_recv");
    receipts_end.Add([this, work, received, from, tag] {
      work->End(
          [&] {
            const at::Tensor& expected = received->expected[0];
            const auto refuse = [&](const at::Tensor& header, int source) {
              C10_THROW_ERROR(ValueError, c10::str("expected ", Describe(expected), ", got ", Describe(header),
                                                   " from rank ", source));
            };
            if (from == getRank()) {
              const OwnMessages::Message own = own_messages_.Take(tag, TimeOfExchange(timeout_.load()));
              if (!at::equal(own.header, expected)) refuse(own.header, *from);
              received->data[0].copy_(own.data);
              return Handle();
            }
            received->begun->wait();
            const int source = from ? *from : received->begun->sourceRank();
            const at::Tensor& header = received->header[0];
            if (at::equal(header, expected)) return host_->recv(received->data, source, tag);
            Tensors refused{at::empty({BytesOf(header)}, at::kByte)};  // what was sent must not come next
            host_->recv(refused, source, tag)->wait();
            refuse(header, source);
            return Handle();
          },
          {});
    });
  });
  return Begun(work);
}

HcclBackend::Handle HcclBackend::barrier(const c10d::BarrierOptions& options) {
  // What this rank has enqueued before the barrier is done before another passes it; to agree on it is to wait for all.
  const c10::Device device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(CurrentDevice()));
  return Enqueue({OpType::BARRIER}, options.timeout, std::make_unique<Exchange>("barrier", device, Wire::kBytes), {});
}

void HcclBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) {
  host_->monitoredBarrier(options, all_ranks);
}

}  // namespace npu::distributed
