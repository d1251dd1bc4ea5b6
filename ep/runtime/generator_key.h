// The key of a generator's numbers for operators that take a seed of 0 for none.
#pragma once

#include <cstdint>

#include "ep/runtime/random.h"

namespace npu {

// The seed, or a number of its own instead of 0.
inline uint64_t KeyOf(PhiloxState position) { return position.seed != 0 ? position.seed : 0x5851F42D4C957F2D; }

}  // namespace npu
