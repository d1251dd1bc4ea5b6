#include "python/csrc/torch_distributed/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace npu::distributed {
namespace {

// The first numbers of a header; the bytes to and from each rank follow.
enum Field : int64_t { kType, kDetail, kTensors, kElements, kDtype, kShapes, kFields };

// Sizes and types of all tensors in one number (FNV-1a).
int64_t Fingerprint(const std::vector<at::Tensor>& tensors) {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  for (const at::Tensor& tensor : tensors) {
    add(static_cast<uint64_t>(tensor.numel()));
    add(static_cast<uint64_t>(tensor.scalar_type()));
  }
  return static_cast<int64_t>(hash);
}

at::Tensor CallHeader(const Signature& signature, int ranks) {
  at::Tensor header = at::empty({kFields + 2 * ranks}, at::kLong);
  int64_t* fields = header.mutable_data_ptr<int64_t>();
  int64_t elements = 0;
  for (const at::Tensor& tensor : signature.tensors) elements += tensor.numel();
  fields[kType] = static_cast<int64_t>(signature.type);
  fields[kDetail] = signature.detail;
  fields[kTensors] = static_cast<int64_t>(signature.tensors.size());
  fields[kElements] = elements;
  fields[kDtype] = signature.tensors.empty() ? -1 : static_cast<int64_t>(signature.tensors[0].scalar_type());
  fields[kShapes] = Fingerprint(signature.tensors);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<size_t>(rank);
    fields[kFields + rank] = signature.sent.empty() ? 0 : signature.sent[at];
    fields[kFields + ranks + rank] = signature.received.empty() ? 0 : signature.received[at];
  }
  return header;
}

std::string DescribeCall(const int64_t* fields) {
  std::string text = c10d::opTypeToString(static_cast<c10d::OpType>(fields[kType]));
  if (fields[kTensors] == 1) {
    text += c10::str(" of ", fields[kElements], " elements of ", static_cast<at::ScalarType>(fields[kDtype]));
  } else if (fields[kTensors] > 1) {
    text += c10::str(" of ", fields[kTensors], " tensors with ", fields[kElements], " elements");
  }
  return text + c10::str(" (reduction or root ", fields[kDetail], ")");
}

}  // namespace

void CheckAgreement(c10d::Backend& host, const Signature& signature, std::chrono::milliseconds timeout) {
  const int ranks = host.getSize();
  std::vector<at::Tensor> mine{CallHeader(signature, ranks)};
  std::vector<std::vector<at::Tensor>> gathered(1);
  for (int rank = 0; rank < ranks; ++rank) gathered[0].push_back(at::empty_like(mine[0]));
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  host.allgather(gathered, mine, options)->wait();

  std::vector<const int64_t*> headers;
  for (const at::Tensor& header : gathered[0]) headers.push_back(header.const_data_ptr<int64_t>());
  for (int rank = 1; rank < ranks; ++rank) {
    TORCH_CHECK_VALUE(std::equal(headers[0], headers[0] + kFields, headers[rank]),
                      "expected the same call on all ranks, got ", DescribeCall(headers[0]), " on rank 0 and ",
                      DescribeCall(headers[rank]), " on rank ", rank);
  }
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const int64_t sent = headers[from][kFields + to], received = headers[to][kFields + ranks + from];
      TORCH_CHECK_VALUE(sent == received, "expected rank ", to, " to receive from rank ", from, " the ", sent,
                        " bytes that it sends, got ", received);
    }
}

}  // namespace npu::distributed
