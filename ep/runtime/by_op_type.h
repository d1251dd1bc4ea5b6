// Lists by op type that the generated table of operators fills while the kernel library is loaded.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace npu {

template <class T>
class ByOpType {
 public:
  // One for the process, which outlives every library that uses it.
  static ByOpType& Instance() {
    static auto* all = new ByOpType;
    return *all;
  }
  void Add(const std::string& op_type, T value) {
    const std::lock_guard lock(mutex_);
    by_type_[op_type].push_back(std::move(value));
  }
  const std::vector<T>& Of(const std::string& op_type) {
    const std::lock_guard lock(mutex_);
    return by_type_[op_type];
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<T>> by_type_;  // a map, so that references stay valid
};

}  // namespace npu
