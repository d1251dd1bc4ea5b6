// Decompositions and solutions of linear systems, which LAPACK computes on the host in the order of the stream
// (docs/decisions/0047-linear-algebra-in-turn.md): the caller does not wait, unless the operator itself has to find out
// whether the computation succeeded.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/graph.h"
#include "python/csrc/torch/cpu_call.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/streams.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

using torch::jit::Stack;

struct LinearOperator {
  const char* name;
  const char* out;  // the overload that writes to its arguments
  bool waits;       // to throw if the computation failed, or since torch has no meta function
};
constexpr LinearOperator kLinearOperators[] = {
    {"_cholesky_solve_helper", nullptr, true},
    {"_linalg_det", "result", false},
    {"_linalg_eigh", "eigenvalues", true},
    {"_linalg_eigvals", nullptr, true},
    {"_linalg_slogdet", "sign", false},
    {"_linalg_solve_ex", "result", false},
    {"_linalg_svd", "U", true},
    {"cholesky", "out", true},
    {"cholesky_inverse", "out", true},
    {"geqrf", "a", true},
    {"linalg_cholesky_ex", "L", false},
    {"linalg_eig", "out", true},
    {"linalg_householder_product", "out", false},
    {"linalg_inv_ex", "inverse", false},
    {"linalg_ldl_factor_ex", "out", false},
    {"linalg_ldl_solve", "out", false},
    {"linalg_lstsq", "out", true},
    {"linalg_lu", "out", false},
    {"linalg_lu_factor_ex", "out", false},
    {"linalg_lu_solve", "out", false},
    {"linalg_matrix_exp", nullptr, false},
    {"linalg_qr", "out", false},
    {"linalg_solve_triangular", "out", false},
    {"lu_unpack", "out", false},
    {"ormqr", "out", false},
    {"triangular_solve", "X", false},
};

// Pinned, so that the copies are asynchronous and a capture can keep them.
at::Tensor Staging(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::empty_strided(sizes, strides, at::TensorOptions(dtype).pinned_memory(true));
}

// A call on the host.
struct HostCall {
  c10::OperatorHandle op;
  bool awaited;  // the caller waits, and throws the failure itself
  Stack arguments;
  std::vector<at::Tensor> results;  // given by the caller unless it waits
  std::exception_ptr failure;

  void Run() {
    try {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      Stack stack = arguments;
      op.callBoxed(stack);
      for (size_t i = 0; i < stack.size(); ++i)
        awaited ? results.push_back(stack[i].toTensor()) : void(results[i].copy_(stack[i].toTensor()));
    } catch (...) {
      if (!awaited) throw;
      failure = std::current_exception();
    }
  }
};

bool IsTensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

// The results' shapes, strides and dtypes, from torch's meta function.
std::vector<at::Tensor> MetaResults(const c10::OperatorHandle& op, const Stack& arguments) {
  Stack stack;
  for (const c10::IValue& argument : arguments)
    stack.push_back(IsTensor(argument) ? argument.toTensor().to(at::kMeta) : argument);
  op.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& result : stack) results.push_back(result.toTensor());
  return results;
}

// New tensors with the results, which are written in the order of the current stream.
std::vector<at::Tensor> CallInTurn(const c10::OperatorHandle& op, bool waits, const Stack& arguments) {
  const auto first = std::find_if(arguments.begin(), arguments.end(), IsTensor);
  const at::Device device = first->toTensor().device();
  const c10::DeviceGuard guard(device);
  Stream& stream = CurrentStream(device.index());
  const bool awaited = waits && !Graph::IsCapturing(stream);
  const auto call = std::make_shared<HostCall>(HostCall{op, awaited, {}, {}, nullptr});
  if (!awaited)
    for (const at::Tensor& result : MetaResults(op, arguments))
      call->results.push_back(Staging(result.sizes(), result.strides(), result.scalar_type()));
  for (const c10::IValue& argument : arguments) {
    call->arguments.push_back(argument);
    if (!IsTensor(argument)) continue;
    const at::Tensor dense = argument.toTensor().resolve_conj().resolve_neg().contiguous();
    at::Tensor host = Staging(dense.sizes(), dense.strides(), dense.scalar_type());
    call->arguments.back() = host.copy_(dense, /*non_blocking=*/true);
  }
  stream.LaunchHost(op.schema().name().c_str() + sizeof("aten::") - 1, [call] { call->Run(); });
  if (awaited) {
    stream.Synchronize();
    if (call->failure) std::rethrow_exception(call->failure);
  }
  std::vector<at::Tensor> results;
  for (const at::Tensor& host : call->results) {
    results.push_back(
        at::empty_strided(host.sizes(), host.strides(), host.options().pinned_memory(false).device(device)));
    results.back().copy_(host, /*non_blocking=*/true);
  }
  return results;
}

// The kernel of one overload: the one that returns its results, or the one that writes them to its last arguments.
class LinearKernel final : public c10::OperatorKernel {
 public:
  LinearKernel(const char* name, bool waits, bool writes)
      : op_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "")), waits_(waits), writes_(writes) {}

  void operator()(const c10::OperatorHandle& called, c10::DispatchKeySet, Stack* stack) {
    // The CPU has no kernels of 16-bit floats.
    if (UpcastsHalves(called, *stack)) return FallBackToCpu(called, stack);
    CheckOneDevice(called, *stack);
    const size_t written = writes_ ? op_.schema().returns().size() : 0;
    const Stack outs = torch::jit::pop(*stack, written);
    const Stack arguments = torch::jit::pop(*stack, op_.schema().arguments().size());
    const std::vector<at::Tensor> results = CallInTurn(op_, waits_, arguments);
    for (size_t i = 0; i < results.size(); ++i) {
      at::Tensor result = results[i];
      if (writes_) {
        at::Tensor out = outs[i].toTensor();
        PrepareOutput(out, result.sizes(), result.strides(), result.options());
        result = out.copy_(result);
      }
      torch::jit::push(*stack, std::move(result));
    }
  }

 private:
  c10::OperatorHandle op_;
  bool waits_, writes_;
};

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  const auto add = [&](const std::string& name, const LinearOperator& op, bool writes) {
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<LinearKernel>(
                             ("aten::" + std::string(op.name)).c_str(), op.waits, writes)));
  };
  for (const LinearOperator& op : kLinearOperators) {
    add(op.name, op, /*writes=*/false);
    if (op.out != nullptr) add(Concat(op.name, ".", op.out), op, /*writes=*/true);
  }
}

}  // namespace
}  // namespace npu::aten
