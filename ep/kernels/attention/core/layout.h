// The layouts of attention operands: what shape and strides an input_layout name stands for.
#pragma once

#include <cstdint>
#include <string>

#include "ep/runtime/kernel_api.h"

namespace npu::attention {

// The T forms pack sequences of different lengths one after another; SH and NSD are a single batch entry.
enum class Form { kBSH, kSBH, kBSND, kBNSD, kNBSD, kTND, kNTD, kSH, kNSD };

inline bool IsPacked(Form form) { return form == Form::kTND || form == Form::kNTD; }
inline bool JoinsHeads(Form form) { return form == Form::kBSH || form == Form::kSBH || form == Form::kSH; }
int RankOf(Form form);
const char* AxesText(Form form);  // "[B, S, N*D]"

struct Layout {
  const char* name;
  Form input, output;
};
// Null for an unknown name.
const Layout* FindLayout(const std::string& name);

// Sizes, and the strides in elements along each axis. A packed operand is one batch entry.
struct Axes {
  int64_t batch = 0, heads = 0, rows = 0, size = 0;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};
// `heads` is used if the form joins heads and head size in one axis.
Axes AxesOf(const Shape& shape, Form form, int64_t heads);

// The shape of a result with `query`'s batch, heads and rows.
Shape OutputShape(Form form, const Axes& query, int64_t size);

}  // namespace npu::attention
