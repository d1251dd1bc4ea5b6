// Eager calls on the host: a kernel created once per operator and attributes, run on tensors in host memory.
#include <pybind11/stl.h>

#include "ep/runtime/device.h"
#include "ep/runtime/eager_context.h"
#include "ep/runtime/op_registry.h"
#include "ep/runtime/run_to_end.h"
#include "python/csrc/module.h"
#include "python/csrc/stream_pool.h"

namespace npu::python {
namespace py = pybind11;
using namespace py::literals;

namespace {

Attributes::Value ToAttribute(const std::string& name, const py::handle& value) {
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();  // bool is an int
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  NPU_CHECK(py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value), "attribute '", name,
            "': expected int, float, str or a list of them, got ", std::string(py::str(py::type::of(value))));
  const auto items = py::reinterpret_borrow<py::sequence>(value);
  if (items.size() > 0 && py::isinstance<py::str>(items[0])) return items.cast<std::vector<std::string>>();
  for (const py::handle item : items) {
    if (py::isinstance<py::float_>(item)) return items.cast<std::vector<double>>();
  }
  return items.cast<std::vector<int64_t>>();
}

// The tensors of one call, and the host memory of inputs passed as lists of integers.
struct CallInputs {
  std::vector<TensorView> views;
  std::vector<std::vector<int64_t>> lists;

  explicit CallInputs(const py::sequence& items) {
    views.reserve(items.size());
    for (const py::handle item : items) {
      if (item.is_none()) {
        views.emplace_back();
      } else if (py::isinstance<py::list>(item)) {
        lists.push_back(item.cast<std::vector<int64_t>>());
        std::vector<int64_t>& values = lists.back();
        const Shape shape{static_cast<int64_t>(values.size())};
        views.push_back({values.empty() ? nullptr : values.data(), DType::kInt64, true, shape});
      } else {
        views.push_back(Tensor(item));
      }
    }
  }

  // (data_ptr, dtype, shape)
  static TensorView Tensor(const py::handle& item) {
    const auto fields = item.cast<py::tuple>();
    NPU_CHECK(fields.size() == 3, "expected a tensor as (data_ptr, dtype, shape)");
    TensorView view;
    view.dtype = static_cast<DType>(fields[1].cast<int>());
    NPU_CHECK(BitsOf(view.dtype) > 0, "expected a numeric dtype, got the code ", fields[1].cast<int>());
    for (const py::handle item : fields[2].cast<py::sequence>()) {
      const auto dim = item.cast<int64_t>();
      NPU_CHECK(dim >= 0, "expected a shape without negative dimensions, got ", dim);
      view.shape.push_back(dim);
    }
    const int64_t elements = view.shape.Elements();
    const auto address = fields[0].cast<uintptr_t>();
    NPU_CHECK(address != 0 || elements == 0, "expected memory for a tensor of shape ", view.shape);
    view.data = elements > 0 ? reinterpret_cast<void*>(address) : nullptr;
    view.present = true;
    return view;
  }
};

class EagerKernel {
 public:
  EagerKernel(const std::string& domain, const std::string& type, int since_version, const py::dict& attributes,
              size_t input_count, size_t output_count)
      : type_(type), output_count_(output_count) {
    const OpDef* def = OpRegistry::Instance().Find(domain, type, since_version);
    if (def == nullptr || !def->make) {
      Fail(ErrorCode::kUnsupported, "[", type, "] has no kernel in this build (domain '", domain, "')");
    }
    KernelInfo info;
    info.op_type = type;
    info.since_version = since_version;
    info.input_count = input_count;
    info.output_count = output_count;
    for (const auto& [name, value] : attributes) {
      const auto key = name.cast<std::string>();
      info.attributes.Set(key, ToAttribute(key, value));
    }
    kernel_ = def->make(info);
  }

  // Runs on host memory and waits. `allocate(i, dtype, shape)` returns the address of output i.
  void Run(const py::sequence& inputs, const py::function& allocate,
           const std::vector<std::pair<size_t, size_t>>& in_place) const {
    Runtime& runtime = Runtime::Instance();
    if (!runtime.backend().KernelsReachHostMemory()) {
      Fail(ErrorCode::kUnsupported, "the ", runtime.backend().name(),
           " backend does not reach host memory: move the tensors to the device");
    }
    CallInputs call(inputs);
    StreamLease stream(runtime.device(0));
    RunToEnd(*stream, [&] {
      EagerContext context(*stream, std::move(call.views), output_count_,
                           [&](size_t i, DType dtype, const Shape& shape) -> void* {
                             const py::tuple dims = py::cast(std::vector<int64_t>(shape.begin(), shape.end()));
                             const py::object address = allocate(i, static_cast<int>(dtype), dims);
                             return reinterpret_cast<void*>(address.cast<uintptr_t>());
                           });
      for (const auto& [output, input] : in_place) context.WriteInPlace(output, input);
      context.Run(*kernel_, type_);
    });
  }

 private:
  std::shared_ptr<const Kernel> kernel_;
  std::string type_;
  size_t output_count_;
};

}  // namespace

void BindKernels(py::module_& m) {
  py::class_<EagerKernel>(m, "Kernel")
      .def(py::init<std::string, std::string, int, py::dict, size_t, size_t>(), "domain"_a, "type"_a, "since_version"_a,
           "attributes"_a, "input_count"_a, "output_count"_a)
      .def("run", &EagerKernel::Run, "inputs"_a, "allocate"_a, "in_place"_a = py::list());
}

}  // namespace npu::python
