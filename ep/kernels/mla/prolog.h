// The computation before multi-head latent attention: npu_mla_prolog and npu_mla_prolog_v2. The semantics are in
// contrib_ops/rope/npu_mla_prolog_v2.py.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

class MlaProlog : public Kernel {
 public:
  // Node inputs, in the order of the schema.
  enum Index : size_t {
    kTokenX,
    kWeightDq,
    kWeightUqQr,
    kWeightUk,
    kWeightDkvKr,
    kGammaCq,
    kGammaCkv,
    kRopeSin,
    kRopeCos,
    kCacheIndex,
    kKvCache,
    kKrCache,
    kScaleX,
    kScaleWDq,
    kScaleWUqQr,
    kScaleWDkvKr,
    kScaleCkv,
    kScaleCkr,
    kSmoothCq,
    kInputs
  };

  // `full_quantization`: token_x may be int8, and the query's scale is a fifth output.
  MlaProlog(const KernelInfo& info, const char* op, bool full_quantization);

  bool PrePack(size_t input, const TensorView& constant, Stream& stream) override;
  void Compute(OpContext& ctx) const override;

 private:
  struct Call;
  template <class T>
  struct Task;

  // Constant float weights in panel order: one set of panels each, or one per head for weight_uk.
  struct Packed {
    TensorView view;  // type and shape
    std::vector<std::unique_ptr<gemm::PackedWeight>> heads;
  };

  void CheckShapes(const Call& c) const;
  void CheckModes(const Call& c) const;
  // out = rows * b, of element type `dtype`; uses the packed weight if there is one.
  void Multiply(DType dtype, Index weight, int64_t head, const gemm::Matrix& rows, const gemm::Matrix& b,
                const gemm::Result& out) const;

  const char* op_;
  bool full_quantization_;
  double epsilon_cq_, epsilon_ckv_;
  bool fractal_;
  std::array<Packed, kWeightDkvKr + 1> packed_;
};

}  // namespace npu
