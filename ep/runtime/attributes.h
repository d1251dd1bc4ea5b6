// The attributes of a node, or the non-tensor arguments of an eager call.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "ep/runtime/dtype.h"
#include "ep/runtime/error.h"

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

  void Set(const std::string& name, Value value) { values_[name] = std::move(value); }
  bool Has(const std::string& name) const { return values_.count(name) != 0; }
  // For npu:: operators: their definition makes each attribute required or gives its default, so it is always present.
  int64_t Int(const std::string& name) const { return Get<int64_t>(Present(name), 0); }
  double Float(const std::string& name) const { return Float(Present(name), 0.0); }
  bool Bool(const std::string& name) const { return Int(name) != 0; }
  std::string String(const std::string& name) const { return Get<std::string>(Present(name), {}); }
  // The value, or `fallback` if absent; throws for the wrong kind, naming the attribute.
  int64_t Int(const std::string& name, int64_t fallback) const { return Get<int64_t>(name, fallback); }
  double Float(const std::string& name, double fallback) const {
    auto it = values_.find(name);
    if (it != values_.end() && std::holds_alternative<int64_t>(it->second))
      return static_cast<double>(std::get<int64_t>(it->second));
    return Get<double>(name, fallback);
  }
  bool Bool(const std::string& name, bool fallback) const { return Int(name, fallback ? 1 : 0) != 0; }
  std::string String(const std::string& name, const std::string& fallback) const {
    return Get<std::string>(name, fallback);
  }
  std::vector<int64_t> Ints(const std::string& name, const std::vector<int64_t>& fallback = {}) const {
    return Get<std::vector<int64_t>>(name, fallback);
  }
  std::vector<double> Floats(const std::string& name, const std::vector<double>& fallback = {}) const {
    return Get<std::vector<double>>(name, fallback);
  }
  TensorAttribute Tensor(const std::string& name, const TensorAttribute& fallback = {}) const {
    return Get<TensorAttribute>(name, fallback);
  }
  const std::map<std::string, Value>& values() const { return values_; }

 private:
  template <class T>
  T Get(const std::string& name, const T& fallback) const {
    auto it = values_.find(name);
    if (it == values_.end()) return fallback;
    NPU_CHECK(std::holds_alternative<T>(it->second), "attribute '", name, "' has the wrong kind");
    return std::get<T>(it->second);
  }
  const std::string& Present(const std::string& name) const {
    NPU_CHECK(Has(name), "expected attribute '", name, "', got none");
    return name;
  }
  std::map<std::string, Value> values_;
};

}  // namespace npu
