// The attributes of a node, or the non-tensor arguments of an eager call.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "ep/runtime/dtype.h"

namespace npu {

// An attribute of kind TENSOR (ConstantOfShape's `value`), in host memory: dense, row-major, BytesFor(dtype,
// elements) bytes. Every adaptor that reads a node's attributes fills it.
struct TensorAttribute {
  DType dtype = DType::kUndefined;
  std::vector<int64_t> shape;
  std::vector<unsigned char> data;
};

class Attributes {
 public:
  using Value = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                             std::vector<std::string>, TensorAttribute>;

  void Set(const std::string& name, Value value);
  bool Has(const std::string& name) const { return values_.count(name) != 0; }
  // For npu:: operators: their definition makes each attribute required or gives its default, so it is always present.
  int64_t Int(const std::string& name) const;
  double Float(const std::string& name) const;
  bool Bool(const std::string& name) const { return Int(name) != 0; }
  std::string String(const std::string& name) const;
  // The value, or `fallback` if absent; throws for the wrong kind, naming the attribute.
  int64_t Int(const std::string& name, int64_t fallback) const;
  double Float(const std::string& name, double fallback) const;
  bool Bool(const std::string& name, bool fallback) const { return Int(name, fallback ? 1 : 0) != 0; }
  std::string String(const std::string& name, const std::string& fallback) const;
  std::vector<int64_t> Ints(const std::string& name, const std::vector<int64_t>& fallback = {}) const;
  std::vector<double> Floats(const std::string& name, const std::vector<double>& fallback = {}) const;
  TensorAttribute Tensor(const std::string& name, const TensorAttribute& fallback = {}) const;
  const std::map<std::string, Value>& values() const { return values_; }

 private:
  template <class T>
  T Get(const std::string& name, const T& fallback) const;
  const std::string& Present(const std::string& name) const;
  std::map<std::string, Value> values_;
};

}  // namespace npu
