#include "ep/kernels/gemm/row_epilogue.h"

#include "ep/runtime/isa.h"

namespace npu::gemm {

namespace {

// A result of so many bytes is in no cache when the next operator reads it.
constexpr int64_t kPastCaches = 32 << 20;
constexpr int64_t kLine = 64;

bool Scales(const Epilogue& epilogue) {
  return epilogue.alpha != 1.0f || epilogue.column_scale.data || epilogue.row_scale.data || epilogue.total_scale.data;
}

bool Serves(const Result& c, const Epilogue& epilogue, const StoredIntegers* integers) {
  if (!Features().avx512 || epilogue.activation) return false;
  if (c.dtype == DType::kInt8 || (c.dtype == DType::kBFloat16 && !Features().avx512_bf16)) return false;
  if (epilogue.column_scale.data && epilogue.column_scale.stride > 1) return false;
  if (epilogue.addend.data && epilogue.addend.column_stride != 1) return false;
  if (epilogue.gated_columns > 0 && (integers || Scales(epilogue))) return false;
  if (!integers) return true;
  const IntegerTerms& terms = epilogue.integers;
  return integers->b_shift == 0 && !terms.b_zero_point.data && !terms.b_float_zero_point.data &&
         (!terms.bias.data || terms.bias.stride == 1);
}

bool Computes(const Result& c, const Epilogue& epilogue) {
  if (c.dtype == DType::kInt32) return false;  // the sum itself
  return Scales(epilogue) || epilogue.addend.data;
}

// Whether Bfloat16Rows computes it, with an addend whose columns follow each other.
bool Rounds(const Result& c, const Epilogue& epilogue) {
  if (c.dtype != DType::kBFloat16 || epilogue.gated_columns > 0 || Scales(epilogue)) return false;
  const Addend& addend = epilogue.addend;
  return !addend.data || (addend.dtype == DType::kBFloat16 && addend.scale == 1.0f);
}

bool LiesInLines(const Result& c) {
  return reinterpret_cast<uintptr_t>(c.data) % kLine == 0 && c.row_stride * BitsOf(c.dtype) / 8 % kLine == 0;
}

}  // namespace

RowEpilogue::RowEpilogue(const Result& c, int64_t elements, const Epilogue& epilogue, const StoredIntegers* integers)
    : c_(c),
      epilogue_(epilogue),
      integers_(integers),
      serves_(Serves(c, epilogue, integers)),
      computes_(Computes(c, epilogue)),
      rounds_(serves_ && !integers && gemm::Rounds(c, epilogue)),
      past_caches_(serves_ && epilogue.gated_columns == 0 && elements * BitsOf(c.dtype) / 8 >= kPastCaches &&
                   LiesInLines(c)) {}

}  // namespace npu::gemm
