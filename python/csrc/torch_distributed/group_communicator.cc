#include "python/csrc/torch_distributed/group_communicator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <numeric>
#include <utility>

#include "ep/runtime/error.h"

namespace npu::distributed {
namespace {

// gloo does not write to what it sends.
at::Tensor Bytes(const void* data, size_t bytes) {
  return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(bytes)}, at::kByte);
}

std::vector<int64_t> Splits(const std::vector<size_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// torch gathers to fresh memory and copies from there; blocks of more bytes are sent to each rank instead.
constexpr size_t kGatheredByTorch = 16 << 10;

// Ranks that call at the same time are not told of each other's waiting.
constexpr std::chrono::milliseconds kUnnoticed{100};

bool EndsWithin(c10d::Work& work, std::chrono::milliseconds limit) {
  try {
    return work.wait(limit);
  } catch (const std::exception&) {  // of the limit, or of the work
    return work.isCompleted();
  }
}

size_t Total(const std::vector<size_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), size_t{0}); }

// The first line of torch's message, without the advice of gloo behind it.
std::string Reason(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string why = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  for (const char* end : {". This is typically", "\n"})
    if (const size_t found = why.find(end); found != std::string::npos) why.resize(found);
  return why;
}

}  // namespace

GroupCommunicator::GroupCommunicator(std::string name, int rank, int size, ConnectHost connect,
                                     std::chrono::milliseconds timeout, std::shared_ptr<RollCall> roll_call,
                                     GroupNotes notes)
    : Communicator(std::move(name), rank, size),
      connect_(std::move(connect)),
      roll_call_(std::move(roll_call)),
      notes_(std::move(notes)),
      timeout_(timeout) {}

void GroupCommunicator::Connect(const char* op) {
  const std::lock_guard lock(connecting_);
  if (host_ != nullptr || closed_) return;
  const auto begin = std::chrono::steady_clock::now();
  try {
    notes_.TellWaiting("connect");
    host_ = connect_(TimeOfExchange(timeout_));
  } catch (const std::exception& error) {
    npu::Fail(ErrorCode::kDeviceError, "[", op, "] on rank ", rank(), " of ", size(), " of the group '",
              Printable(group()), "': the ranks do not connect", roll_call_->Missing("connect", Since(begin), timeout_),
              ": ", Printable(Reason(error)));
  }
}

bool GroupCommunicator::IsAwaited() {
  const std::lock_guard lock(connecting_);
  return !closed_ && notes_.IsWaiting(host_ == nullptr ? "connect" : c10::str("exchange ", exchanges_));
}

void GroupCommunicator::SetTimeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(connecting_);
  timeout_ = timeout;
  if (host_ != nullptr) host_->setTimeout(TimeOfExchange(timeout));
}

void GroupCommunicator::GatherBytes(const void* sent, void* received, size_t bytes) {
  if (bytes > kGatheredByTorch) {
    const size_t ranks = static_cast<size_t>(size());
    if (ranks == 2) {
      // The block for the other rank is this rank's own: nothing is copied but into the result.
      char* const blocks = static_cast<char*>(received);
      const size_t other = rank() == 0 ? 1 : 0;
      std::vector<size_t> to_other(2, 0);
      to_other[other] = bytes;
      ExchangeBytes(sent, to_other, blocks + other * bytes, to_other);
      std::memcpy(blocks + (1 - other) * bytes, sent, bytes);
      return;
    }
    if (copies_.size() < bytes * ranks) copies_.resize(bytes * ranks);
    for (size_t rank = 0; rank < ranks; ++rank) std::memcpy(copies_.data() + rank * bytes, sent, bytes);
    const std::vector<size_t> each(ranks, bytes);
    return ExchangeBytes(copies_.data(), each, received, each);
  }
  Wait([&] {
    at::Tensor whole = Bytes(received, bytes * static_cast<size_t>(size())), part = Bytes(sent, bytes);
    return host_->_allgather_base(whole, part, {});
  });
}

void GroupCommunicator::ExchangeBytes(const void* sent, const std::vector<size_t>& sent_bytes, void* received,
                                      const std::vector<size_t>& received_bytes) {
  Wait([&] {
    std::vector<int64_t> out = Splits(sent_bytes), in = Splits(received_bytes);
    at::Tensor to = Bytes(received, Total(received_bytes)), from = Bytes(sent, Total(sent_bytes));
    return host_->alltoall_base(to, from, in, out, {});
  });
}

void GroupCommunicator::Wait(const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    const c10::intrusive_ptr<c10d::Work> work = start();
    if (!EndsWithin(*work, kUnnoticed)) notes_.TellWaiting(c10::str("exchange ", exchanges_));
    work->wait();
    ++exchanges_;
  } catch (const std::exception& error) {
    Close();
    npu::Fail(ErrorCode::kDeviceError, "the ranks' exchange failed",
              roll_call_->Missing("operators", Since(begin), Timeout()), ": ", Printable(Reason(error)));
  }
}

std::chrono::milliseconds GroupCommunicator::Timeout() {
  const std::lock_guard lock(connecting_);
  return timeout_;
}

void GroupCommunicator::Close() {
  const std::lock_guard lock(connecting_);
  host_.reset();
  closed_ = true;
}

}  // namespace npu::distributed
