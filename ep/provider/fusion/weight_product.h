// The product of activations with a constant matrix, of floats or quantised, that is joined with what reads it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ep/provider/fusion/rule.h"

namespace npu::provider {

struct WeightProduct {
  std::string prefix;                // of the joined operator's type
  int64_t columns = 0;               // of the matrix
  std::vector<ValueView> inputs;     // the joined operator's first
  std::vector<ValueView> last = {};  // and its last, if the product has it
  Attributes attributes = {};
  std::optional<int64_t> result = {};  // the code of its type, where the inputs do not tell
};

// The product that computes `value`; takes its node.
std::optional<WeightProduct> TakeWeightProduct(FusionMatch& match, const ValueView& value);

}  // namespace npu::provider
