// How a call of torch.ops.npu maps to a kernel call: built once from the operator's definition.
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/attributes.h"
#include "ep/runtime/dtype.h"

namespace npu::aten {

struct PlannedInput {
  std::string name;
  size_t argument;  // position in the schema
  bool variadic, integers, on_host;
  DTypeSet dtypes;
  std::string dtype_names, dtype_note;
};

struct PlannedAttribute {
  std::string name;
  size_t argument;
  std::string kind;  // int, float, string, ints, floats, strings, dtype, type_code, number_type
  // For a type_code: (torch's number of a dtype, the node's code of it), and the error for any other dtype.
  std::vector<std::pair<int64_t, int64_t>> codes;
  std::string refusal;
  std::vector<std::pair<int64_t, std::string>> type_names;
};

struct CallPlan {
  explicit CallPlan(const pybind11::dict& definition);

  std::string name;  // for messages
  std::string type;  // in domain npu
  std::vector<PlannedInput> inputs;
  std::vector<PlannedAttribute> attributes;
  std::vector<std::pair<size_t, size_t>> in_place;  // (output, input)
  size_t outputs;
  size_t results;    // of the schema
  bool list_result;  // the last result is a list
  bool seeded;       // the node has a seed, the schema has none
  // settle(arguments) -> (changes by position, outputs, results that are integers), in Python; null: not needed. Kept
  // for the life of the process, like the registration.
  pybind11::handle settle;
};

// The attribute's value in a call; nullopt: absent.
std::optional<Attributes::Value> ValueOf(const PlannedAttribute& attribute, const c10::IValue& argument);
std::vector<int64_t> IntegersOf(const c10::IValue& list);

}  // namespace npu::aten
