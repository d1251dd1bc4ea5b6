// The activations that recurrent layers name in attributes, as functions of rows.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu::recurrent {

// C: float or double.
template <class C>
struct Activation {
  void (*row)(C* values, int64_t n, C alpha, C beta) = nullptr;
  C alpha = 0, beta = 0;
  C clip = std::numeric_limits<C>::infinity();  // values are limited to [-clip, clip] first; NaN stays

  void operator()(C* values, int64_t n) const {
    if (clip < std::numeric_limits<C>::infinity()) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const C low = values[i] < -clip ? -clip : values[i];
        values[i] = low > clip ? clip : low;
      }
    }
    row(values, n, alpha, beta);
  }
};

// What a node says of its activations: `activations` with `activation_alpha` and `activation_beta`, from which each
// activation that has such a number takes the next, or its default where there is none left.
class ActivationList {
 public:
  // `defaults`: those of one direction, where the node names none.
  ActivationList(const char* op, const Attributes& attributes, const std::vector<std::string>& defaults,
                 int64_t directions);

  // Activation `i` of a direction.
  template <class C>
  Activation<C> Get(int64_t direction, size_t i) const;

 private:
  struct Entry {
    size_t function;  // in the table of functions
    double alpha, beta;
  };
  size_t each_;  // activations of a direction
  std::vector<Entry> entries_;
};

}  // namespace npu::recurrent
