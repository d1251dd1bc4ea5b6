// The equation of an Einsum, with the shapes of its operands.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu {

// A subscript is a letter, or an axis that an ellipsis stands for, counted from the last one.
struct EinsumEquation {
  using Subscripts = std::vector<int>;

  // Throws "[Einsum] expected …, got …" where the equation is none, or does not fit the shapes.
  EinsumEquation(const std::string& text, const std::vector<Shape>& shapes);

  std::vector<Subscripts> operands;
  Subscripts output;
  std::map<int, int64_t> sizes;  // of each subscript
};

}  // namespace npu
