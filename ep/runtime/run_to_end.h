// Work that is over when the call returns, whichever way it returns.
#pragma once

#include <exception>
#include <utility>

#include "ep/runtime/stream.h"

namespace npu {

// Calls `launch` and waits for `stream`, which this thread has to itself meanwhile. Where `launch` throws halfway, what
// it has launched is waited for, too: it uses memory that the caller lets go of.
template <class F>
void RunToEnd(Stream& stream, F&& launch) {
  try {
    std::forward<F>(launch)();
  } catch (...) {
    try {
      stream.Synchronize();
    } catch (const std::exception&) {
      // The failure that the caller is told of came first.
    }
    throw;
  }
  stream.Synchronize();
}

}  // namespace npu
