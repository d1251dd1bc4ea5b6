// Runs work to its end before the call returns, also when it throws.
#pragma once

#include <exception>
#include <utility>

#include "ep/runtime/stream.h"

namespace npu {

// Calls `launch` and waits for `stream`, which no other thread uses meanwhile. If `launch` throws halfway, waits for
// what it has launched, too, because that uses memory which the caller is about to release.
template <class F>
void RunToEnd(Stream& stream, F&& launch) {
  try {
    std::forward<F>(launch)();
  } catch (...) {
    try {
      stream.Synchronize();
    } catch (const std::exception&) {
      // The caller receives the first failure.
    }
    throw;
  }
  stream.Synchronize();
}

}  // namespace npu
