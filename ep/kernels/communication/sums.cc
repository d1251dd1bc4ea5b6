#include "ep/kernels/communication/sums.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "ep/kernels/convert.h"

namespace npu {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kBlock = 512;
// Below, it takes less time to send everything to everybody than to send parts twice.
constexpr size_t kSmallBytes = 16 << 10;

template <class T>
void SumRange(const T* parts, int64_t stride, int64_t ranks, int64_t begin, int64_t end, T* to) {
  alignas(64) std::array<float, kBlock> sum, term;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    ToFloat(parts + at, sum.data(), count);
    for (int64_t rank = 1; rank < ranks; ++rank) {
      ToFloat(parts + rank * stride + at, term.data(), count);
      for (int64_t i = 0; i < count; ++i) sum[static_cast<size_t>(i)] += term[static_cast<size_t>(i)];
    }
    FromFloat(sum.data(), to + at, count);
  }
}

int8_t Saturated(float value) {
  // Half to even; NaN is 0, as in every quantisation.
  return static_cast<int8_t>(value == value ? std::clamp(std::nearbyint(value), -128.0f, 127.0f) : 0.0f);
}

// Not initialized.
std::unique_ptr<char[]> Buffer(size_t bytes) { return std::unique_ptr<char[]>(new char[bytes]); }

}  // namespace

void SumOfRanks(const char* op, DType dtype, const void* parts, int64_t stride, int64_t ranks, int64_t count,
                void* to) {
  DispatchFloats(op, dtype, [&](auto tag) {
    using T = decltype(tag);
    ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
      SumRange(static_cast<const T*>(parts), stride, ranks, begin, end, static_cast<T*>(to));
    });
  });
}

void AllReduce(Communicator& group, const char* op, DType dtype, void* data, int64_t count) {
  const size_t bytes = BytesFor(dtype, count), ranks = static_cast<size_t>(group.size());
  if (bytes == 0) return;
  if (bytes <= kSmallBytes) {
    const auto all = Buffer(bytes * ranks);
    group.AllGather(op, data, all.get(), bytes);
    return SumOfRanks(op, dtype, all.get(), count, group.size(), count, data);
  }
  // Every rank sums a share of its own, the last ones maybe less or nothing.
  const int64_t share = (count + group.size() - 1) / group.size();
  const size_t share_bytes = BytesFor(dtype, share);
  std::vector<size_t> sent(ranks), received;
  for (size_t rank = 0; rank < ranks; ++rank)
    sent[rank] = std::min(bytes, (rank + 1) * share_bytes) - std::min(bytes, rank * share_bytes);
  const size_t mine = sent[static_cast<size_t>(group.rank())];
  received.assign(ranks, mine);
  const auto parts = Buffer(mine * ranks + 1), sum = Buffer(share_bytes), all = Buffer(share_bytes * ranks);
  group.AllToAll(op, data, sent, parts.get(), received);
  const int64_t elements = static_cast<int64_t>(mine / BytesFor(dtype, 1));
  SumOfRanks(op, dtype, parts.get(), elements, group.size(), elements, sum.get());
  std::memset(sum.get() + mine, 0, share_bytes - mine);
  group.AllGather(op, sum.get(), all.get(), share_bytes);
  std::memcpy(data, all.get(), bytes);
}

void AllReduceInt8(Communicator& group, const char* op, DType dtype, void* data, int64_t rows, int64_t n,
                   const TransferScales& scales) {
  if (rows == 0 || n == 0) return;
  // Every rank sums a share of the rows, the last ones maybe less or nothing.
  const int64_t ranks = group.size(), share = (rows + ranks - 1) / ranks;
  std::vector<size_t> sent;
  for (int64_t rank = 0; rank < ranks; ++rank)
    sent.push_back(static_cast<size_t>(std::clamp<int64_t>(rows - rank * share, 0, share) * n));
  const size_t mine = sent[static_cast<size_t>(group.rank())];
  const auto terms = Buffer(static_cast<size_t>(rows * n)), received = Buffer(mine * sent.size() + 1);
  const auto sum = Buffer(static_cast<size_t>(share * n)), sums = Buffer(static_cast<size_t>(ranks * share * n));
  const auto as_int8 = [](const std::unique_ptr<char[]>& buffer) { return reinterpret_cast<int8_t*>(buffer.get()); };
  DispatchFloats(op, dtype, [&](auto tag) {
    using T = decltype(tag);
    T* values = static_cast<T*>(data);
    ParallelFor(rows * n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) as_int8(terms)[i] = Saturated(ToFloat(values[i]) / scales.terms[i % n]);
    });
    group.AllToAll(op, terms.get(), sent, received.get(), std::vector<size_t>(sent.size(), mine));
    ParallelFor(static_cast<int64_t>(mine), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int32_t total = 0;
        for (size_t rank = 0; rank < sent.size(); ++rank)
          total += as_int8(received)[rank * mine + static_cast<size_t>(i)];
        as_int8(sum)[i] = Saturated(static_cast<float>(total) * scales.terms[i % n] / scales.sums[i % n]);
      }
    });
    std::memset(sum.get() + mine, 0, static_cast<size_t>(share * n) - mine);
    group.AllGather(op, sum.get(), sums.get(), static_cast<size_t>(share * n));
    ParallelFor(rows * n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        values[i] = FromFloat<T>(static_cast<float>(as_int8(sums)[i]) * scales.sums[i % n]);
    });
  });
}

void ReduceScatter(Communicator& group, const char* op, DType dtype, const void* parts, void* to, int64_t count) {
  const size_t bytes = BytesFor(dtype, count), ranks = static_cast<size_t>(group.size());
  if (bytes == 0) return;
  const auto received = Buffer(bytes * ranks);
  const std::vector<size_t> each(ranks, bytes);
  group.AllToAll(op, parts, each, received.get(), each);
  SumOfRanks(op, dtype, received.get(), count, group.size(), count, to);
}

}  // namespace npu
