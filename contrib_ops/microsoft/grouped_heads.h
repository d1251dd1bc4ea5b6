// The attributes of attention whose query heads share key heads: what GroupQueryAttention and PagedAttention have in
// common.
#pragma once

#include <cmath>
#include <cstdint>

#include "ep/kernels/attention/core/attention.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

class GroupedHeadsKernel : public Kernel {
 protected:
  GroupedHeadsKernel(const char* op, const KernelInfo& info)
      : heads_(info.attributes.Int("num_heads")),
        key_heads_(info.attributes.Int("kv_num_heads")),
        window_(info.attributes.Int("local_window_size")),
        rotary_(info.attributes.Bool("do_rotary")),
        interleaved_(info.attributes.Bool("rotary_interleaved")),
        op_(op),
        scale_(info.attributes.Float("scale")),
        softcap_(static_cast<float>(info.attributes.Float("softcap"))) {
    NPU_CHECK(heads_ > 0 && key_heads_ > 0 && heads_ <= INT32_MAX && heads_ % key_heads_ == 0, "[", op,
              "] expected a kv_num_heads that divides num_heads, got ", key_heads_, " and ", heads_);
    NPU_CHECK(softcap_ >= 0 && std::isfinite(softcap_), "[", op, "] expected a softcap of 0 or more, got ", softcap_);
  }

  // Attention of heads of `size` elements; rows and sequences are to be added.
  attention::Problem ProblemOf(DType dtype, int64_t size) const {
    attention::Problem p;
    p.op = op_;
    p.query_dtype = p.output_dtype = p.key.dtype = p.value.dtype = dtype;
    p.heads = heads_;
    p.key_heads = key_heads_;
    p.head_size = p.value_size = size;
    p.scale = static_cast<float>(scale_ == 0 ? 1 / std::sqrt(static_cast<double>(size)) : scale_);
    p.softcap = softcap_;
    return p;
  }

  int64_t heads_, key_heads_, window_;
  bool rotary_, interleaved_;

 private:
  const char* const op_;
  double scale_;
  float softcap_;
};

}  // namespace npu
