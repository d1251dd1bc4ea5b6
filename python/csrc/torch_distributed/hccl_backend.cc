#include "python/csrc/torch_distributed/hccl_backend.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "ep/runtime/current.h"

namespace npu::distributed {

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

HcclBackend::Handle HcclBackend::barrier(const c10d::BarrierOptions& options) {
  // What this rank has enqueued before the barrier is done before another passes it; to agree on it is to wait for all.
  const c10::Device device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(CurrentDevice()));
  return Enqueue({c10d::OpType::BARRIER}, options.timeout, std::make_unique<Exchange>("barrier", device, Wire::kBytes),
                 {});
}

void HcclBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool all_ranks) {
  host_->monitoredBarrier(options, all_ranks);
}

}  // namespace npu::distributed
