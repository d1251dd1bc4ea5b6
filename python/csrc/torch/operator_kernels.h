// The kernels of one operator, created once for every combination of attribute values that calls use, up to a limit.
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
  // The first kernels are never destroyed, so that launched work and captured graphs can use them directly. Beyond
  // those, the oldest is replaced; the work that launches such a kernel must keep it.
  static constexpr size_t kLasting = 64, kReplaced = 64;

  struct Found {
    std::shared_ptr<const Kernel> kernel;
    bool lasting;
  };

  // The kernels of the newest version of the operator `type`; takes no lock. Throws Error(kUnsupported) if there is
  // none.
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
  std::vector<size_t> hashes_;  // of the entries; separate, so that a search touches little memory
  std::vector<Entry> entries_;
  size_t last_ = 0;  // the entry found last, usually that of the next call, too
  size_t oldest_ = kLasting;
};

}  // namespace npu::aten
