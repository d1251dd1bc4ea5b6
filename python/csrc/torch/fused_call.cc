#include "python/csrc/torch/fused_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_dtypes.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "python/csrc/errors.h"
#include "python/csrc/torch/autograd_skip.h"
#include "python/csrc/torch/call_plan.h"
#include "python/csrc/torch/generator.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace py = pybind11;

namespace {

thread_local BesidesArguments given_next;

[[noreturn]] void ThrowToPython(const Error& error) {
  py::gil_scoped_acquire gil;
  npu::python::SetPythonError(error);
  python_error raised;
  raised.persist();
  throw raised;  // NOLINT(misc-throw-by-value-catch-by-reference)
}

std::string TorchNameOf(at::ScalarType dtype) {
  return reinterpret_cast<const THPDtype*>(torch::getTHPDtype(dtype))->name;
}

// The host's part of a call, which its definition leaves to Python.
struct Settled {
  size_t outputs;
  std::vector<int64_t> integers;  // results
};

class FusedCall {
 public:
  FusedCall(const CallPlan& plan, OperatorKernels& kernels, const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : plan_(plan), kernels_(kernels), op_(op), stack_(stack), count_(op.schema().arguments().size()) {}

  void Run() {
    const BesidesArguments given = std::exchange(given_next, {});
    Settled settled{plan_.outputs, {}};
    if (plan_.settle) settled = Settle();
    CheckDtypes();
    const at::Tensor& beside = FirstOnDevice();
    const DeviceOfArguments device(beside);
    KernelCall call(kernels_);
    for (const PlannedInput& input : plan_.inputs) Push(call, input, beside.device());
    for (const PlannedAttribute& attribute : plan_.attributes)
      if (auto value = ValueOf(attribute, Argument(attribute.argument)))
        call.Set(attribute.name.c_str(), *std::move(value));
    if (plan_.seeded) call.Set("seed", Seed(given, beside));
    for (const auto& [output, input] : plan_.in_place) call.WriteOver(output, input);
    std::vector<at::Tensor> outputs(settled.outputs);
    Launch(call, beside, given.results, outputs);
    for (size_t i = 0; i < plan_.in_place.size(); ++i) Written(outputs[plan_.in_place[i].first], i);
    Return(std::move(outputs), settled.integers);
  }

 private:
  c10::IValue& Argument(size_t i) { return stack_[stack_.size() - count_ + i]; }

  Settled Settle() {
    py::gil_scoped_acquire gil;
    py::list arguments;
    for (size_t i = 0; i < count_; ++i) arguments.append(torch::jit::toPyObject(Argument(i)));
    try {
      const py::tuple told = plan_.settle(arguments);
      for (const auto& [position, value] : told[0].cast<std::vector<std::pair<size_t, py::object>>>())
        Argument(position) = torch::jit::toIValue(value, op_.schema().arguments()[position].type());
      return {told[1].cast<size_t>(), told[2].cast<std::vector<int64_t>>()};
    } catch (py::error_already_set& error) {
      error.restore();
      python_error raised;
      raised.persist();
      throw raised;  // NOLINT(misc-throw-by-value-catch-by-reference)
    }
  }

  static bool IsAbsent(const c10::IValue& value) {
    return value.isNone() || (value.isTensor() && !value.toTensor().defined());
  }

  template <class F>
  void ForEachTensor(const PlannedInput& input, F&& f) {
    const c10::IValue& value = Argument(input.argument);
    if (input.integers || IsAbsent(value)) return;
    if (!input.variadic) {
      f(value.toTensor());
    } else {
      for (const c10::IValue& element : value.toListRef()) f(element.toTensor());
    }
  }

  void CheckDtypes() {
    for (const PlannedInput& input : plan_.inputs)
      ForEachTensor(input, [&](const at::Tensor& tensor) {
        const DType dtype = ToDType(tensor.scalar_type());
        NPU_CHECK(dtype != DType::kUndefined && input.dtypes.Contains(dtype), "[", plan_.name, "] expected ",
                  input.name, " of dtype ", input.dtype_names, ", got ", TorchNameOf(tensor.scalar_type()),
                  input.dtype_note);
      });
  }

  const at::Tensor& FirstOnDevice() {
    const at::Tensor* first = nullptr;
    for (const PlannedInput& input : plan_.inputs)
      ForEachTensor(input, [&](const at::Tensor& tensor) {
        if (first == nullptr && tensor.is_privateuseone()) first = &tensor;
      });
    TORCH_INTERNAL_ASSERT(first != nullptr, plan_.name, " was called without an npu tensor");
    return *first;
  }

  void Push(KernelCall& call, const PlannedInput& input, c10::Device device) {
    const c10::IValue& value = Argument(input.argument);
    if (IsAbsent(value)) {
      call.Absent();
    } else if (input.integers) {
      call.Host(IntegersOf(value));
    } else {
      ForEachTensor(input, [&](const at::Tensor& tensor) {
        if (input.on_host) {  // the kernel reads the values while it is called: wait for them
          call.OnHost(tensor.cpu().contiguous());
          return;
        }
        NPU_CHECK(tensor.device() == device, "[", plan_.name, "] expected ", input.name, " on ", device,
                  " like the other tensors, got ", tensor.device(),
                  ": Expected all tensors to be on the same device, but found at least two devices, ", device, " and ",
                  tensor.device(), "!");
        call.In(InPlaceTarget(input) ? Writable(tensor) : Dense(tensor));
      });
    }
  }

  bool InPlaceTarget(const PlannedInput& input) const {
    for (const auto& [output, position] : plan_.in_place)
      if (&plan_.inputs[position] == &input) return true;
    return false;
  }

  // The dense tensor that the kernel writes over, also stored in `written_`, which Written() reads in this order.
  const at::Tensor& Writable(const at::Tensor& tensor) {
    at::Tensor dense = Dense(tensor);
    dense.mutable_data_ptr();  // a pending lazy copy is made now
    return written_.emplace_back(std::move(dense));
  }

  int64_t Seed(const BesidesArguments& given, const at::Tensor& beside) {
    if (given.seed != 0) return given.seed;
    return static_cast<int64_t>(DrawSeed(SourceOf(std::nullopt, beside.device().index()), StreamOf(beside)));
  }

  void Launch(KernelCall& call, const at::Tensor& beside, const std::vector<at::Tensor>& given,
              std::vector<at::Tensor>& outputs) {
    const auto allocate = [&](size_t i, DType dtype, const Shape& shape) -> void* {
      const at::IntArrayRef sizes(shape.begin(), static_cast<size_t>(shape.rank()));
      const at::ScalarType element = ToScalarType(dtype);
      if (i < given.size()) {
        const at::Tensor& tensor = given[i];
        NPU_CHECK(tensor.sizes() == sizes && tensor.scalar_type() == element, "[", plan_.name,
                  "] expected a result torch.", TorchNameOf(tensor.scalar_type()), " of shape ", tensor.sizes(),
                  ", as it was captured, got torch.", TorchNameOf(element), " of shape ", sizes);
        outputs[i] = tensor;
      } else {
        outputs[i] = Empty(sizes, element, beside);
      }
      return outputs[i].mutable_data_ptr();
    };
    try {
      call.Run(outputs.size(), beside.device().index(), allocate);
    } catch (const Error& error) {
      const std::string text = error.what();
      if (error.code() != ErrorCode::kInvalidArgument || text.starts_with("[")) throw;
      Fail(error.code(), "[", plan_.name, "] ", text);
    }
  }

  // Stores the new value in the argument of pair `i`, which becomes the output.
  void Written(at::Tensor& output, size_t i) {
    const size_t position = plan_.in_place[i].second;
    const at::Tensor& target = Argument(plan_.inputs[position].argument).toTensor();
    if (!written_[Rank(position)].is_same(target)) target.copy_(written_[Rank(position)]);
    target.unsafeGetTensorImpl()->bump_version();
    output = target;
  }

  // The index of input `position` in `written_`, which has the order of the inputs.
  size_t Rank(size_t position) const {
    size_t rank = 0;
    for (size_t before = 0; before < position; ++before) rank += InPlaceTarget(plan_.inputs[before]) ? 1 : 0;
    return rank;
  }

  void Return(std::vector<at::Tensor> outputs, const std::vector<int64_t>& integers) {
    torch::jit::drop(stack_, count_);
    if (plan_.list_result) {
      const size_t head = plan_.results - 1;
      c10::List<at::Tensor> rest;
      for (size_t i = head; i < outputs.size(); ++i) rest.push_back(std::move(outputs[i]));
      outputs.resize(head);
      for (at::Tensor& tensor : outputs) stack_.emplace_back(std::move(tensor));
      stack_.emplace_back(std::move(rest));
      return;
    }
    for (size_t i = 0; i < plan_.results - integers.size(); ++i) stack_.emplace_back(std::move(outputs[i]));
    for (const int64_t integer : integers) stack_.emplace_back(integer);
  }

  const CallPlan& plan_;
  OperatorKernels& kernels_;
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  size_t count_;
  c10::SmallVector<at::Tensor, 2> written_;
};

// The kernel of one overload on the dispatch key PrivateUse1.
class FusedKernel final : public c10::OperatorKernel {
 public:
  explicit FusedKernel(const py::dict& plan) : plan_(plan) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    try {
      FusedCall(plan_, OperatorKernels::Of(plan_.type.c_str(), "npu"), op, *stack).Run();
    } catch (const Error& error) {
      ThrowToPython(error);
    }
  }

 private:
  const CallPlan plan_;
};

}  // namespace

void GiveNextCall(BesidesArguments given) { given_next = std::move(given); }

void RegisterFused(const std::string& name, const py::dict& plan) {
  static auto& library =
      *new torch::Library(torch::Library::IMPL, "npu", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<FusedKernel>(plan)));
  RegisterAutogradSkip(name);
}

}  // namespace npu::aten
