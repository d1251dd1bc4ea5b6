#include "python/csrc/torch/unreleased_graphs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <exception>

#include "ep/runtime/log.h"
#include "ep/runtime/worker_thread.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

// A pass of its own, which the autograd thread takes once it has released the pass before. Nothing is launched: there
// are no elements.
void PassOver(int device) {
  const at::Tensor leaf = at::empty({0}, at::TensorOptions().device(DeviceAt(device))).requires_grad_();
  leaf.backward(at::empty_like(leaf));
}

}  // namespace

// On a thread of its own, whose state holds no Python objects: autograd keeps the state of the thread that begins a
// pass in its graph, which would again be released later.
void WaitForUnreleasedGraphs(const std::vector<int>& devices) {
  auto pass_over = [&devices] {
    try {
      for (const int device : devices) PassOver(device);
    } catch (const std::exception& e) {  // of a stopped device
      NPU_LOG(kWarning, "graphs of autograd may be released after the interpreter's end: ", e.what());
    }
  };
  StartWorkerThread("npu-graphs", pass_over).join();
}

}  // namespace npu::aten
