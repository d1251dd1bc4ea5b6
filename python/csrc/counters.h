// Counters of memory for Python.
#pragma once

#include <pybind11/pybind11.h>

#include "ep/runtime/allocator.h"

namespace npu::python {

inline pybind11::dict Counter(const StatCounter& c) {
  using namespace pybind11::literals;
  return pybind11::dict("current"_a = c.current, "peak"_a = c.peak, "allocated"_a = c.allocated, "freed"_a = c.freed);
}

}  // namespace npu::python
