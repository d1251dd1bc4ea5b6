#include <pybind11/stl.h>

#include "ep/runtime/op_registry.h"
#include "python/csrc/module.h"

namespace npu::python {
namespace py = pybind11;
using namespace py::literals;

namespace {

py::list DTypeNames(DTypeSet set) {
  py::list names;
  for (int d = 1; d < 64; ++d) {
    if (set.Contains(static_cast<DType>(d))) names.append(NameOf(static_cast<DType>(d)));
  }
  return names;
}

py::list Args(const std::vector<ArgDef>& args) {
  py::list out;
  for (const ArgDef& a : args) {
    out.append(py::dict("name"_a = a.name, "dtypes"_a = DTypeNames(a.dtypes), "optional"_a = a.optional,
                        "variadic"_a = a.variadic, "cpu"_a = a.cpu));
  }
  return out;
}

py::list RegisteredOps() {
  py::list out;
  for (const OpDef* def : OpRegistry::Instance().All()) {
    py::list attributes;
    for (const AttrDef& a : def->attributes) attributes.append(a.name);
    out.append(py::dict("domain"_a = def->domain, "type"_a = def->type, "since"_a = def->since, "until"_a = def->until,
                        "inputs"_a = Args(def->inputs), "outputs"_a = Args(def->outputs), "attributes"_a = attributes));
  }
  return out;
}

}  // namespace

void BindOpTable(py::module_& m) { m.def("registered_ops", &RegisteredOps); }

}  // namespace npu::python
