#include "python/csrc/torch/call_plan.h"

#include <pybind11/stl.h>

#include "ep/runtime/error.h"
#include "python/csrc/torch/kernel_call.h"

namespace npu::aten {
namespace py = pybind11;

namespace {

template <class T>
T Field(const py::handle& fields, const char* name) {
  return fields[py::str(name)].cast<T>();
}

PlannedInput MakeInput(const py::handle& fields) {
  PlannedInput input;
  input.name = Field<std::string>(fields, "name");
  input.argument = Field<size_t>(fields, "argument");
  input.variadic = Field<bool>(fields, "variadic");
  input.integers = Field<bool>(fields, "integers");
  input.on_host = Field<bool>(fields, "on_host");
  input.dtype_names = Field<std::string>(fields, "dtype_names");
  input.dtype_note = Field<std::string>(fields, "dtype_note");
  for (const int number : Field<std::vector<int>>(fields, "dtypes")) {
    const auto dtype = static_cast<DType>(number);
    ToScalarType(dtype);  // throws for a dtype that kernels take but torch tensors cannot have
    input.dtypes = input.dtypes | DTypeSet{dtype};
  }
  return input;
}

int64_t IntegerOf(const c10::IValue& value) {
  if (value.isBool()) return value.toBool() ? 1 : 0;
  if (value.isSymInt()) return value.toSymInt().guard_int(__FILE__, __LINE__);
  return value.toInt();
}

double FloatOf(const c10::IValue& value) {
  TORCH_CHECK_TYPE(!value.isComplexDouble(), "float() argument must be a string or a real number, not 'complex'");
  if (value.isDouble()) return value.toDouble();
  if (value.isSymFloat()) return value.toSymFloat().guard_float(__FILE__, __LINE__);
  return static_cast<double>(IntegerOf(value));
}

int64_t TypeOfNumber(const c10::IValue& value) {
  const bool integer = value.isInt() || value.isSymInt();
  return static_cast<int64_t>(value.isBool() ? DType::kBool : integer ? DType::kInt64 : DType::kFloat32);
}

template <class T, class F>
std::vector<T> ListOf(const c10::IValue& list, const F& convert) {
  std::vector<T> values;
  values.reserve(list.toListRef().size());
  for (const c10::IValue& value : list.toListRef()) values.push_back(convert(value));
  return values;
}

PlannedAttribute MakeAttribute(const py::handle& fields) {
  PlannedAttribute attribute;
  attribute.name = Field<std::string>(fields, "name");
  attribute.argument = Field<size_t>(fields, "argument");
  attribute.kind = Field<std::string>(fields, "kind");
  attribute.codes = Field<std::vector<std::pair<int64_t, int64_t>>>(fields, "codes");
  attribute.refusal = Field<std::string>(fields, "refusal");
  attribute.type_names = Field<std::vector<std::pair<int64_t, std::string>>>(fields, "type_names");
  return attribute;
}

int64_t TypeCodeOf(const PlannedAttribute& attribute, int64_t number) {
  for (const auto& [known, code] : attribute.codes)
    if (known == number) return code;
  std::string name = std::to_string(number);
  for (const auto& [known, text] : attribute.type_names)
    if (known == number) name = text;
  Fail(ErrorCode::kInvalidArgument, attribute.refusal, name);
}

}  // namespace

CallPlan::CallPlan(const py::dict& definition)
    : name(Field<std::string>(definition, "name")),
      type(Field<std::string>(definition, "type")),
      in_place(Field<std::vector<std::pair<size_t, size_t>>>(definition, "in_place")),
      outputs(Field<size_t>(definition, "outputs")),
      results(Field<size_t>(definition, "results")),
      list_result(Field<bool>(definition, "list_result")),
      seeded(Field<bool>(definition, "seeded")) {
  for (const py::handle fields : definition["inputs"]) inputs.push_back(MakeInput(fields));
  for (const py::handle fields : definition["attributes"]) attributes.push_back(MakeAttribute(fields));
  const py::object function = definition["settle"];
  if (!function.is_none()) settle = function.inc_ref();
}

std::optional<Attributes::Value> ValueOf(const PlannedAttribute& attribute, const c10::IValue& argument) {
  if (argument.isNone()) return std::nullopt;
  const std::string& kind = attribute.kind;
  if (kind == "int") return IntegerOf(argument);
  if (kind == "dtype") return static_cast<int64_t>(ToDType(argument.toScalarType()));
  if (kind == "number_type") return TypeOfNumber(argument);
  if (kind == "type_code") return TypeCodeOf(attribute, IntegerOf(argument));
  if (kind == "float") return FloatOf(argument);
  if (kind == "string") return argument.toStringRef();
  if (kind == "ints") return ListOf<int64_t>(argument, IntegerOf);
  if (kind == "floats") return ListOf<double>(argument, FloatOf);
  return ListOf<std::string>(argument, [](const c10::IValue& value) { return value.toStringRef(); });
}

std::vector<int64_t> IntegersOf(const c10::IValue& list) { return ListOf<int64_t>(list, IntegerOf); }

}  // namespace npu::aten
