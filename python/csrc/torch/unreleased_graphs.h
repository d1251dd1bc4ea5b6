// The graph of a backward pass that is over is released by the device's autograd thread, some time later.
#pragma once

#include <vector>

namespace npu::aten {

// Waits until the autograd threads of these devices hold no graphs. The caller must not hold the interpreter's lock.
void WaitForUnreleasedGraphs(const std::vector<int>& devices);

}  // namespace npu::aten
