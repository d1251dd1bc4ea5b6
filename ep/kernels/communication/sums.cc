#include "ep/kernels/communication/sums.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "ep/kernels/convert.h"

namespace npu {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kBlock = 512;
// Below, it takes less time to send everything to everybody than to send parts twice.
constexpr size_t kSmallBytes = 16 << 10;

// Each rank's terms, in the order of ranks; the sums may take the place of one rank's.
using Terms = std::vector<const void*>;

template <class T>
void SumRange(const Terms& terms, int64_t begin, int64_t end, T* to) {
  alignas(64) std::array<float, kBlock> sum, term;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    ToFloat(static_cast<const T*>(terms[0]) + at, sum.data(), count);
    for (size_t rank = 1; rank < terms.size(); ++rank) {
      ToFloat(static_cast<const T*>(terms[rank]) + at, term.data(), count);
      for (int64_t i = 0; i < count; ++i) sum[static_cast<size_t>(i)] += term[static_cast<size_t>(i)];
    }
    FromFloat(sum.data(), to + at, count);
  }
}

int8_t Saturated(float value) {
  // Half to even; NaN is 0, as in every quantisation.
  return static_cast<int8_t>(value == value ? std::clamp(std::nearbyint(value), -128.0f, 127.0f) : 0.0f);
}

// Elements of the share that a rank sums; the last ranks may have less, or nothing.
int64_t ShareOf(int64_t count, int64_t ranks) { return (count + ranks - 1) / ranks; }

// to[i] = the sum of the i-th terms, of floats.
void SumOfTerms(const char* op, DType dtype, const Terms& terms, int64_t count, void* to) {
  DispatchFloats(op, dtype, [&](auto tag) {
    using T = decltype(tag);
    ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) { SumRange(terms, begin, end, static_cast<T*>(to)); });
  });
}

// Terms that lie one behind the other.
Terms TermsIn(const void* parts, size_t bytes, int ranks) {
  Terms terms;
  for (int rank = 0; rank < ranks; ++rank)
    terms.push_back(static_cast<const char*>(parts) + static_cast<size_t>(rank) * bytes);
  return terms;
}

// Both ranks sum everything: each sends as many bytes as for the sum of a half and for the half of a sum, in one
// exchange instead of two. Sums of 16-bit floats, which are converted, take longer than the second exchange.
void AllReduceOfTwo(Communicator& group, const char* op, DType dtype, void* data, int64_t count, void* scratch) {
  const size_t other = group.rank() == 0 ? 1 : 0;
  std::vector<size_t> to_other(2, 0);
  to_other[other] = BytesFor(dtype, count);
  group.AllToAll(op, data, to_other, scratch, to_other);
  Terms terms(2, data);
  terms[other] = scratch;
  SumOfTerms(op, dtype, terms, count, data);
}

}  // namespace

void AllReduce(Communicator& group, const char* op, DType dtype, void* data, int64_t count, void* scratch) {
  const size_t bytes = BytesFor(dtype, count), ranks = static_cast<size_t>(group.size());
  if (bytes == 0) return;
  char* const parts = static_cast<char*>(scratch);
  if (ranks == 2 && dtype == DType::kFloat32) return AllReduceOfTwo(group, op, dtype, data, count, scratch);
  if (bytes <= kSmallBytes) {
    group.AllGather(op, data, parts, bytes);
    return SumOfTerms(op, dtype, TermsIn(parts, bytes, group.size()), count, data);
  }
  const int64_t share = ShareOf(count, group.size());
  const size_t share_bytes = BytesFor(dtype, share);
  std::vector<size_t> sent(ranks), received;
  for (size_t rank = 0; rank < ranks; ++rank)
    sent[rank] = std::min(bytes, (rank + 1) * share_bytes) - std::min(bytes, rank * share_bytes);
  const size_t mine = sent[static_cast<size_t>(group.rank())];
  received.assign(ranks, mine);
  char* const sum = parts + share_bytes * ranks;
  group.AllToAll(op, data, sent, parts, received);
  const int64_t elements = static_cast<int64_t>(mine / BytesFor(dtype, 1));
  SumOfTerms(op, dtype, TermsIn(parts, mine, group.size()), elements, sum);
  std::memset(sum + mine, 0, share_bytes - mine);
  if (share_bytes * ranks == bytes) return group.AllGather(op, sum, data, share_bytes);
  group.AllGather(op, sum, parts, share_bytes);
  std::memcpy(data, parts, bytes);
}

size_t AllReduceScratch(DType dtype, int64_t count, int64_t ranks) {
  const size_t small = std::min(BytesFor(dtype, count), kSmallBytes) * static_cast<size_t>(ranks);
  return std::max(small, BytesFor(dtype, ShareOf(count, ranks) * (ranks + 1)));
}

void AllReduceInt8(Communicator& group, const char* op, DType dtype, void* data, int64_t rows, int64_t n,
                   const TransferScales& scales, void* scratch) {
  if (rows == 0 || n == 0) return;
  const int64_t ranks = group.size(), share = ShareOf(rows, ranks);
  std::vector<size_t> sent;
  for (int64_t rank = 0; rank < ranks; ++rank)
    sent.push_back(static_cast<size_t>(std::clamp<int64_t>(rows - rank * share, 0, share) * n));
  const size_t mine = sent[static_cast<size_t>(group.rank())];
  int8_t* const terms = static_cast<int8_t*>(scratch);
  int8_t* const received = terms + rows * n;
  int8_t* const sum = received + ranks * share * n;
  int8_t* const sums = received;  // whose terms have been summed by then
  DispatchFloats(op, dtype, [&](auto tag) {
    using T = decltype(tag);
    T* values = static_cast<T*>(data);
    ParallelFor(rows * n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) terms[i] = Saturated(ToFloat(values[i]) / scales.terms[i % n]);
    });
    group.AllToAll(op, terms, sent, received, std::vector<size_t>(sent.size(), mine));
    ParallelFor(static_cast<int64_t>(mine), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int32_t total = 0;
        for (size_t rank = 0; rank < sent.size(); ++rank) total += received[rank * mine + static_cast<size_t>(i)];
        sum[i] = Saturated(static_cast<float>(total) * scales.terms[i % n] / scales.sums[i % n]);
      }
    });
    std::memset(sum + mine, 0, static_cast<size_t>(share * n) - mine);
    group.AllGather(op, sum, sums, static_cast<size_t>(share * n));
    ParallelFor(rows * n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[i] = FromFloat<T>(static_cast<float>(sums[i]) * scales.sums[i % n]);
    });
  });
}

size_t AllReduceInt8Scratch(int64_t rows, int64_t n, int64_t ranks) {
  return static_cast<size_t>((rows + ShareOf(rows, ranks) * (ranks + 1)) * n);
}

void ReduceScatter(Communicator& group, const char* op, DType dtype, const void* parts, void* to, int64_t count,
                   void* scratch) {
  const size_t bytes = BytesFor(dtype, count), ranks = static_cast<size_t>(group.size());
  if (bytes == 0) return;
  const std::vector<size_t> each(ranks, bytes);
  group.AllToAll(op, parts, each, scratch, each);
  SumOfTerms(op, dtype, TermsIn(scratch, bytes, group.size()), count, to);
}

size_t ReduceScatterScratch(DType dtype, int64_t count, int64_t ranks) { return BytesFor(dtype, count * ranks); }

}  // namespace npu
