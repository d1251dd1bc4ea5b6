// The process group `hccl`: collectives of npu tensors over a process group of the host.
//
// A collective is enqueued like a kernel: it takes its inputs as the current stream leaves them, and the caller goes
// on. The host's copies of the inputs are exchanged by the host's group (gloo), one collective after the other, and the
// results are copied back on a stream of their own. Whoever waits for the work lets the current stream wait for that
// one.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <variant>
#include <vector>

#include "python/csrc/torch_distributed/agreement.h"
#include "python/csrc/torch_distributed/coalesced_work.h"
#include "python/csrc/torch_distributed/collective_work.h"
#include "python/csrc/torch_distributed/group_communicator.h"
#include "python/csrc/torch_distributed/job_thread.h"
#include "python/csrc/torch_distributed/own_messages.h"

namespace npu::distributed {

class HcclBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Handle = c10::intrusive_ptr<c10d::Work>;

  struct Options final : c10d::Backend::Options {
    Options() : c10d::Backend::Options("hccl") {}
    // HCCL's tuning by name, for scripts that set it; gloo has nothing like it.
    std::map<std::string, std::variant<int64_t, std::string>> hccl_config;
  };

  // `name` is the group's, which get_hccl_comm_name() tells the operators that communicate; `store` is the group's,
  // too. `connect` makes the group of the host that those operators use. A call fails within `timeout` if ranks are
  // missing.
  HcclBackend(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store> store, std::string name,
              c10::intrusive_ptr<Options> options, std::chrono::milliseconds timeout,
              GroupCommunicator::ConnectHost connect);

  const std::string getBackendName() const override { return "hccl"; }
  // The group's name for operators. Asked not to connect, a group whose name nobody has taken before has none.
  std::string TakeName(bool connect);
  // Gives the group another name. Throws for one that is empty or longer than HCCL's, and once the group has a name
  // that somebody has taken or given.
  void SetName(const std::string& name);
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override { host_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return host_->getSequenceNumberForGroup(); }
  // The calls between them, which begin as usual, have one work.
  void startCoalescing() override;
  Handle endCoalescing() override;
  void abort() override { host_->abort(); }
  void shutdown() override { host_->shutdown(); }

  Handle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Handle allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Handle allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Handle reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Handle allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Handle _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  Handle allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                             const c10d::AllgatherOptions& options) override;
  Handle allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& options) override;
  Handle gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Handle scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  Handle reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                        const c10d::ReduceScatterOptions& options) override;
  Handle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                              const c10d::ReduceScatterOptions& options) override;
  Handle reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                         const c10d::ReduceScatterOptions& options) override;
  Handle alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                       std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  Handle alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Handle send(Tensors& tensors, int to, int tag) override;
  Handle recv(Tensors& tensors, int from, int tag) override;
  Handle recvAnysource(Tensors& tensors, int tag) override;
  Handle barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) override;

 private:
  using Start = std::function<Handle(c10d::Backend& host)>;
  using Adapt = std::function<void(at::Tensor&)>;
  // Enqueues a collective whose tensors `exchange` has staged. `adapt` changes each result before it is copied back.
  Handle Enqueue(Signature signature, std::chrono::milliseconds timeout, std::unique_ptr<Exchange> exchange,
                 Start start, Adapt adapt = {});
  // Returns the work of a call, which the end of coalescing waits for, too.
  Handle Begun(Handle work);
  // Of tensors that differ in their sizes, which all ranks know.
  Handle GatherUneven(const Tensors& outputs, const Tensors& inputs, const c10d::AllgatherOptions& options);
  Handle ReduceScatterUneven(const Tensors& outputs, const Tensors& inputs, const c10d::ReduceScatterOptions& options);
  void MakeOperators();
  // Enqueues a receipt from the rank `from`, or from any.
  Handle Receive(Tensors& tensors, std::optional<int> from, int tag);

  const c10::intrusive_ptr<c10d::Backend> host_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  const GroupNotes notes_;
  const std::shared_ptr<RollCall> roll_call_;
  const GroupCommunicator::ConnectHost connect_;
  std::mutex naming_;  // guards the next three
  std::string name_;
  bool name_taken_ = false;
  std::shared_ptr<GroupCommunicator> operators_;  // known to them by the group's name
  std::mutex coalescing_;                         // guards the next one
  std::optional<CoalescedWork::Works> coalesced_;
  OwnMessages own_messages_;
  std::atomic<uint64_t> collectives_so_far_{0};  // which all ranks call in one order
  // One collective after the other. Transfers between two ranks need not come in the same order on all ranks: all of
  // them have begun before the first has to end, and one never waits for a transfer in the other direction, or for
  // another peer: that may be waiting for what this rank does next.
  JobThread collectives_{"npu_hccl"};
  std::map<int, JobThread> sends_end_, receipts_end_;  // by peer; of peers_begin_ alone, while it runs
  JobThread peers_begin_{"npu_hccl_begin"};
};

}  // namespace npu::distributed
