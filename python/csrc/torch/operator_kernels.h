// The kernels of one operator, made once for every combination of attribute values that calls use, within bounds.
#pragma once

#include <c10/util/SmallVector.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/attributes.h"
#include "ep/runtime/op_registry.h"

namespace npu::aten {

// Attributes of a call, whose names outlive it.
using NamedValues = c10::SmallVector<std::pair<const char*, Attributes::Value>, 2>;

class OperatorKernels {
 public:
  // The first ones are never destroyed, so that launched work and captured graphs just use them. Of more, the oldest
  // makes room; whoever launches such a kernel lets the work keep it.
  static constexpr size_t kLasting = 64, kReplaced = 64;

  struct Found {
    std::shared_ptr<const Kernel> kernel;
    bool lasting;
  };

  // Of the newest form of the operator `type`; takes no lock. Throws Error(kUnsupported) where there is none.
  static OperatorKernels& Of(const char* type, const char* domain);

  explicit OperatorKernels(const OpDef& def) : def_(def) {}

  const OpDef& def() const { return def_; }
  Found Find(const NamedValues& attributes, size_t inputs, size_t outputs);
  size_t size();

 private:
  struct Entry {
    size_t inputs, outputs;
    std::vector<std::pair<std::string, Attributes::Value>> attributes;
    std::shared_ptr<const Kernel> kernel;
  };

  size_t IndexOf(size_t hash, const NamedValues& attributes, size_t inputs, size_t outputs) const;
  size_t Add(size_t hash, const NamedValues& attributes, size_t inputs, size_t outputs);

  const OpDef& def_;
  std::mutex mutex_;
  std::vector<size_t> hashes_;  // of the entries, apart from them: a search touches little memory
  std::vector<Entry> entries_;
  size_t last_ = 0;  // the entry that was found last, which the next call most often wants
  size_t oldest_ = kLasting;
};

}  // namespace npu::aten
