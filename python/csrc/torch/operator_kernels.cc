#include "python/csrc/torch/operator_kernels.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string_view>
#include <unordered_map>

namespace npu::aten {
namespace {

using OperatorName = std::pair<std::string_view, std::string_view>;  // type, domain

void Mix(size_t& hash, size_t value) { hash ^= value + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2); }

struct HashOfName {
  size_t operator()(const OperatorName& name) const {
    size_t hash = std::hash<std::string_view>()(name.first);
    Mix(hash, std::hash<std::string_view>()(name.second));
    return hash;
  }
};

using OperatorTable = std::unordered_map<OperatorName, OperatorKernels, HashOfName>;

OperatorTable& NewOperatorTable() {
  std::unordered_map<OperatorName, const OpDef*, HashOfName> newest;
  for (const OpDef* def : OpRegistry::Instance().All()) {
    const OpDef*& known = newest[{def->type, def->domain}];
    if (known == nullptr || def->until > known->until) known = def;
  }
  auto& table = *new OperatorTable;
  for (const auto& [name, def] : newest) table.try_emplace(name, *def);
  return table;
}

size_t HashOf(int64_t number) { return static_cast<size_t>(number); }
size_t HashOf(double number) { return std::bit_cast<size_t>(number); }
size_t HashOf(const std::string& text) { return std::hash<std::string>()(text); }
size_t HashOf(const TensorAttribute& tensor) {
  const std::string_view bytes(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  return std::hash<std::string_view>()(bytes);
}
template <class T>
size_t HashOf(const std::vector<T>& values) {
  size_t hash = values.size();
  for (const T& value : values) Mix(hash, HashOf(value));
  return hash;
}

// Floats are compared by their bits: NaN equals itself, and -0 differs from 0.
template <class T>
bool Same(const T& a, const T& b) {
  return a == b;
}
bool Same(double a, double b) { return HashOf(a) == HashOf(b); }
bool Same(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) { return Same(x, y); });
}
bool Same(const TensorAttribute& a, const TensorAttribute& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.data == b.data;
}
bool SameValue(const Attributes::Value& a, const Attributes::Value& b) {
  if (a.index() != b.index()) return false;
  return std::visit([&]<class T>(const T& value) { return Same(value, std::get<T>(b)); }, a);
}

size_t HashOfCall(const NamedValues& attributes, size_t inputs, size_t outputs) {
  size_t hash = inputs;
  Mix(hash, outputs);
  for (const auto& [name, value] : attributes)
    Mix(hash, std::visit([](const auto& content) { return HashOf(content); }, value));
  return hash;
}

}  // namespace

OperatorKernels& OperatorKernels::Of(const char* type, const char* domain) {
  static OperatorTable& table = NewOperatorTable();  // complete and never changed: read without a lock
  const auto found = table.find({type, domain});
  if (found == table.end())
    Fail(ErrorCode::kUnsupported, "[", type, "] has no kernel in this build (domain '", domain, "')");
  return found->second;
}

size_t OperatorKernels::IndexOf(size_t hash, const NamedValues& attributes, size_t inputs, size_t outputs) const {
  const auto fits = [&](size_t i) {
    const Entry& entry = entries_[i];
    return hashes_[i] == hash && entry.inputs == inputs && entry.outputs == outputs &&
           std::equal(attributes.begin(), attributes.end(), entry.attributes.begin(), entry.attributes.end(),
                      [](const auto& a, const auto& b) { return b.first == a.first && SameValue(a.second, b.second); });
  };
  if (last_ < entries_.size() && fits(last_)) return last_;
  for (size_t i = 0; i < entries_.size(); ++i)
    if (fits(i)) return i;
  return entries_.size();
}

size_t OperatorKernels::Add(size_t hash, const NamedValues& attributes, size_t inputs, size_t outputs) {
  Entry entry{inputs, outputs, {}, nullptr};
  KernelInfo info;
  info.op_type = def_.type;
  info.since_version = def_.until;
  info.input_count = inputs;
  info.output_count = outputs;
  for (const auto& [name, value] : attributes) {
    entry.attributes.emplace_back(name, value);
    info.attributes.Set(name, value);
  }
  entry.kernel = def_.make(info);
  if (entries_.size() < kLasting + kReplaced) {
    hashes_.reserve(entries_.size() + 1);
    entries_.push_back(std::move(entry));
    hashes_.push_back(hash);
    return entries_.size() - 1;
  }
  const size_t place = oldest_;
  entries_[place] = std::move(entry);
  hashes_[place] = hash;
  oldest_ = place + 1 < entries_.size() ? place + 1 : kLasting;
  return place;
}

OperatorKernels::Found OperatorKernels::Find(const NamedValues& attributes, size_t inputs, size_t outputs) {
  const size_t hash = HashOfCall(attributes, inputs, outputs);
  std::lock_guard lock(mutex_);
  const size_t found = IndexOf(hash, attributes, inputs, outputs);
  last_ = found < entries_.size() ? found : Add(hash, attributes, inputs, outputs);
  return {entries_[last_].kernel, last_ < kLasting};
}

size_t OperatorKernels::size() {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace npu::aten
