#include "python/csrc/torch/cpu_call.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "python/csrc/torch/elementwise.h"

namespace npu::aten {
namespace {

using torch::jit::Stack;

// Operators whose result depends on the exact dtype, so that upcasting would change it.
constexpr std::array<std::string_view, 4> kTypeMatters = {"aten::nextafter", "aten::frexp", "aten::view",
                                                          "aten::result_type"};
// Operators that accept some CPU tensors, whatever the device of the others.
constexpr std::array<std::string_view, 9> kMixDevices = {"aten::index",
                                                         "aten::index_put",
                                                         "aten::index_put_",
                                                         "aten::_index_put_impl_",
                                                         "aten::_unsafe_index",
                                                         "aten::_unsafe_index_put",
                                                         "aten::tensor_split",
                                                         "aten::_pack_padded_sequence",
                                                         "aten::_pack_padded_sequence_backward"};

template <size_t n>
bool Among(const std::array<std::string_view, n>& names, const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  for (const std::string_view known : names)
    if (name == known) return true;
  return false;
}

c10::ArrayRef<c10::IValue> Arguments(const c10::OperatorHandle& op, const Stack& stack) {
  const size_t n = op.schema().arguments().size();
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - n, n);
}

template <class Visit>
void ForEachTensor(c10::ArrayRef<c10::IValue> values, const Visit& visit) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector())
        if (t.defined()) visit(t);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
        if (Has(t)) visit(*t);
    }
  }
}

// The value with `change` applied to every tensor in it.
template <class Change>
c10::IValue Changed(const c10::IValue& value, const Change& change) {
  const auto changed = [&](const at::Tensor& t) { return t.defined() ? change(t) : t; };
  if (value.isTensor()) return changed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(changed(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      list.push_back(t ? std::optional(changed(*t)) : t);
    return list;
  }
  return value;
}

bool IsWritten(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool SaysDtype(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.real_type();
  const auto* optional = type->castRaw<c10::OptionalType>();
  return (optional != nullptr ? optional->getElementType() : type)->kind() == c10::TypeKind::ScalarTypeType;
}

at::Tensor WideOnHost(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  return IsHalf(host.scalar_type()) ? host.to(at::kFloat) : host;
}

at::Tensor Meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

std::vector<std::optional<at::ScalarType>> DtypesOf(c10::ArrayRef<c10::IValue> results) {
  std::vector<std::optional<at::ScalarType>> dtypes;
  ForEachTensor(results, [&](const at::Tensor& t) { dtypes.push_back(t.scalar_type()); });
  return dtypes;
}

// The results' dtypes, in the order of their tensors, from torch's meta function; nullopt if it has none.
std::optional<std::vector<std::optional<at::ScalarType>>> ResultTypes(const c10::OperatorHandle& op,
                                                                      c10::ArrayRef<c10::IValue> arguments) {
  try {
    Stack stack;
    for (const c10::IValue& argument : arguments) stack.push_back(Changed(argument, Meta));
    op.callBoxed(stack);
    return DtypesOf(stack);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// The argument that a result aliases, if the operator returns what it wrote to.
const c10::IValue* WrittenArgument(const c10::OperatorHandle& op, size_t result, c10::ArrayRef<c10::IValue> arguments) {
  const c10::AliasInfo* alias = op.schema().returns()[result].alias_info();
  if (alias == nullptr) return nullptr;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* of = op.schema().arguments()[i].alias_info();
    if (of != nullptr && of->beforeSets() == alias->beforeSets()) return &arguments[i];
  }
  return nullptr;
}

// Copies the results over the tensors that the caller passed to be written.
void WriteBack(const c10::IValue& to, const c10::IValue& from) {
  std::vector<at::Tensor> sources;
  ForEachTensor(from, [&](const at::Tensor& t) { sources.push_back(t); });
  size_t next = 0;
  ForEachTensor(to, [&](const at::Tensor& t) {
    const at::Tensor& source = sources[next++];
    if (t.sizes() != source.sizes()) t.resize_(source.sizes());
    t.copy_(source);
  });
}

}  // namespace

void CheckOneDevice(const c10::OperatorHandle& op, const Stack& stack) {
  if (Among(kMixDevices, op)) return;
  std::optional<at::Device> device;
  ForEachTensor(Arguments(op, stack), [&](const at::Tensor& t) {
    if (IsHostScalar(t)) return;
    if (!device) device = t.device();
    TORCH_CHECK(*device == t.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ",
                t.device(), "! (", op.operator_name().name, ")");
  });
}

bool UpcastsHalves(const c10::OperatorHandle& op, const Stack& stack) {
  if (Among(kTypeMatters, op)) return false;
  for (const c10::Argument& result : op.schema().returns())
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return false;  // a view
  bool halves = false;
  ForEachTensor(Arguments(op, stack), [&](const at::Tensor& t) { halves = halves || IsHalf(t.scalar_type()); });
  return halves;
}

void CallUpcast(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::vector<c10::IValue> arguments = Arguments(op, *stack).vec();
  torch::jit::drop(*stack, arguments.size());
  std::optional<at::Device> device;
  at::ScalarType half = at::kHalf;
  ForEachTensor(arguments, [&](const at::Tensor& t) {
    if (t.is_privateuseone()) device = t.device();
    if (IsHalf(t.scalar_type())) half = t.scalar_type();
  });

  Stack wide;
  for (size_t i = 0; i < arguments.size(); ++i) {
    wide.push_back(Changed(arguments[i], WideOnHost));
    if (SaysDtype(schema.arguments()[i]) && arguments[i].isInt() &&
        IsHalf(static_cast<at::ScalarType>(arguments[i].toInt())))
      wide.back() = static_cast<int64_t>(at::kFloat);
  }
  const std::vector<c10::IValue> written = wide;
  op.callBoxed(wide);
  for (size_t i = 0; i < arguments.size(); ++i)
    if (IsWritten(schema.arguments()[i])) WriteBack(arguments[i], written[i]);

  const auto types = ResultTypes(op, arguments);
  size_t tensor = 0;
  const auto narrowed = [&](const at::Tensor& t) {
    const size_t index = tensor++;
    at::ScalarType dtype = t.scalar_type() == at::kFloat ? half : t.scalar_type();
    if (types && index < types->size() && (*types)[index]) dtype = *(*types)[index];
    at::Tensor result = t.to(dtype);
    return device ? result.to(*device) : result;
  };
  for (size_t i = 0; i < wide.size(); ++i) {
    const c10::IValue* same = WrittenArgument(op, i, arguments);
    c10::IValue result = Changed(wide[i], narrowed);
    torch::jit::push(*stack, same != nullptr ? *same : std::move(result));
  }
}

}  // namespace npu::aten
