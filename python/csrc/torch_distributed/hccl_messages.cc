// Messages of `hccl` between two ranks.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <utility>

#include "python/csrc/torch_distributed/hccl_backend.h"
#include "python/csrc/torch_distributed/rank_tensors.h"

namespace npu::distributed {
namespace {

using c10d::OpType;

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

// Before the data a sender tells its size, because the transport aborts the process that receives another.
HcclBackend::Handle HcclBackend::send(Tensors& tensors, int to, int tag) {
  auto exchange = BeginExchange("send", tensors);
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
  auto exchange = BeginExchange("recv", tensors);
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

}  // namespace npu::distributed
