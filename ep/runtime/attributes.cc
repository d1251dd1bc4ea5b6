#include "ep/runtime/attributes.h"

#include <utility>

#include "ep/runtime/error.h"

namespace npu {

template <class T>
T Attributes::Get(const std::string& name, const T& fallback) const {
  auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  NPU_CHECK(std::holds_alternative<T>(it->second), "attribute '", name, "' has the wrong kind");
  return std::get<T>(it->second);
}

const std::string& Attributes::Present(const std::string& name) const {
  NPU_CHECK(Has(name), "expected attribute '", name, "', got none");
  return name;
}

void Attributes::Set(const std::string& name, Value value) { values_[name] = std::move(value); }

int64_t Attributes::Int(const std::string& name) const { return Get<int64_t>(Present(name), 0); }
double Attributes::Float(const std::string& name) const { return Float(Present(name), 0.0); }
std::string Attributes::String(const std::string& name) const { return Get<std::string>(Present(name), {}); }

int64_t Attributes::Int(const std::string& name, int64_t fallback) const { return Get<int64_t>(name, fallback); }
double Attributes::Float(const std::string& name, double fallback) const {
  auto it = values_.find(name);
  if (it != values_.end() && std::holds_alternative<int64_t>(it->second))
    return static_cast<double>(std::get<int64_t>(it->second));
  return Get<double>(name, fallback);
}
std::string Attributes::String(const std::string& name, const std::string& fallback) const {
  return Get<std::string>(name, fallback);
}
std::vector<int64_t> Attributes::Ints(const std::string& name, const std::vector<int64_t>& fallback) const {
  return Get<std::vector<int64_t>>(name, fallback);
}
std::vector<double> Attributes::Floats(const std::string& name, const std::vector<double>& fallback) const {
  return Get<std::vector<double>>(name, fallback);
}
TensorAttribute Attributes::Tensor(const std::string& name, const TensorAttribute& fallback) const {
  return Get<TensorAttribute>(name, fallback);
}

}  // namespace npu
