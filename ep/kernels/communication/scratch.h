// Memory of a call of an operator that communicates.
#pragma once

#include <cstddef>
#include <memory>

namespace npu {

inline std::unique_ptr<char[]> Scratch(size_t bytes) { return std::unique_ptr<char[]>(new char[bytes + 1]); }

}  // namespace npu
