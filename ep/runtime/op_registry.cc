#include "ep/runtime/op_registry.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "ep/runtime/kernel_library.h"

template class std::vector<npu::ArgDef>;
template class std::vector<npu::AttrDef>;

namespace npu {
namespace {

using Key = std::pair<std::string, std::string>;  // domain, type

Key KeyOf(const std::string& domain, const std::string& type) { return {domain == "ai.onnx" ? "" : domain, type}; }

// Fills in the definition's defaults, so that no kernel repeats them.
Attributes WithDefaults(Attributes given, const std::vector<AttrDef>& definitions) {
  for (const AttrDef& attribute : definitions)
    if (attribute.fallback && !given.Has(attribute.name)) given.Set(attribute.name, *attribute.fallback);
  return given;
}

KernelFactory WithDefaults(KernelFactory make, const std::vector<AttrDef>& definitions) {
  if (make == nullptr) return nullptr;
  return [make = std::move(make), definitions](KernelInfo info) {
    info.attributes = WithDefaults(std::move(info.attributes), definitions);
    return make(info);
  };
}

std::function<std::string(const NodeView&)> WithDefaults(std::function<std::string(const NodeView&)> unsupported,
                                                         const std::vector<AttrDef>& definitions) {
  if (unsupported == nullptr) return nullptr;
  return [unsupported = std::move(unsupported), definitions](NodeView node) {
    node.attributes = WithDefaults(std::move(node.attributes), definitions);
    return unsupported(node);
  };
}

std::string QualifiedName(const Key& key) { return key.first.empty() ? key.second : key.first + "::" + key.second; }

}  // namespace

// Registrations come from static initializers in any order, and an exception there would end the process; so the first
// contradiction is stored and thrown at the first look-up.
struct OpRegistry::Impl {
  struct Entry {
    std::vector<std::unique_ptr<OpDef>> versions;  // the pointers handed out stay valid
    bool has_schema = false;
    KernelFactory make = nullptr;  // of a schema, possibly before it
    std::function<std::string(const NodeView&)> unsupported;
    std::vector<std::pair<size_t, Key>> aliases;  // by input count (0: any): the operator that such nodes run
  };
  // One of the operators that an aliased op type stands for.
  struct Meaning {
    size_t input_count;
    KernelFactory make;
    std::function<std::string(const NodeView&)> unsupported;
  };

  explicit Impl(std::function<void()> l) : load(std::move(l)) {}

  const std::function<void()> load;
  std::mutex load_mutex;
  std::atomic<bool> loaded{false};
  std::mutex mutex;
  std::map<Key, Entry> entries;
  bool joined = false;  // reset by every registration
  std::string problem;

  void Report(const std::string& text) {
    if (problem.empty()) problem = text;
  }

  Entry& EntryOf(const Key& key) {
    joined = false;
    return entries[key];
  }

  // Called first by every look-up: returns when everything is registered and kernels are joined to their schemas.
  std::unique_lock<std::mutex> Ready() {
    if (!loaded.load(std::memory_order_acquire)) {
      std::lock_guard lock(load_mutex);
      if (!loaded.load(std::memory_order_relaxed)) load();  // retried after a failure
      loaded.store(true, std::memory_order_release);
    }
    std::unique_lock lock(mutex);
    if (!joined) Join();
    if (!problem.empty()) throw Error(ErrorCode::kInternal, problem);
    return lock;
  }

  void Join() {
    for (auto& [key, entry] : entries) JoinEntry(key, entry);
    for (auto& [key, entry] : entries)
      if (!entry.aliases.empty()) JoinAliases(key, entry);
    joined = true;
  }

  void JoinAliases(const Key& key, Entry& entry) {
    if (!entry.has_schema) return Report(Concat("alias ", QualifiedName(key), " has no definition"));
    std::vector<Meaning> meanings;
    for (const auto& [input_count, target] : entry.aliases) {
      const auto other = entries.find(target);
      if (other != entries.end() && other->second.make)
        meanings.push_back({input_count, other->second.make, other->second.unsupported});
    }
    if (entry.make) meanings.push_back({0, entry.make, entry.unsupported});
    if (meanings.empty()) return;
    const auto find = [](const std::vector<Meaning>& all, size_t input_count) -> const Meaning* {
      for (const Meaning& m : all)
        if (m.input_count == input_count) return &m;
      return all.back().input_count == 0 ? &all.back() : nullptr;
    };
    OpDef& def = *entry.versions.front();
    const auto make = [find, meanings](const KernelInfo& info) {
      const Meaning* meaning = find(meanings, info.input_count);
      if (meaning == nullptr)
        Fail(ErrorCode::kUnsupported, "[", info.op_type, "] has no kernel for ", info.input_count, " inputs");
      return meaning->make(info);
    };
    def.make = WithDefaults(KernelFactory(make), def.attributes);
    const auto unsupported = [find, meanings](const NodeView& node) -> std::string {
      const Meaning* meaning = find(meanings, node.inputs.size());
      if (meaning == nullptr) return Concat("no operator of this type takes ", node.inputs.size(), " inputs");
      return meaning->unsupported ? meaning->unsupported(node) : std::string();
    };
    def.unsupported = WithDefaults(std::function<std::string(const NodeView&)>(unsupported), def.attributes);
  }

  void JoinEntry(const Key& key, Entry& entry) {
    if (entry.has_schema) {
      OpDef& def = *entry.versions.front();
      def.make = WithDefaults(entry.make, def.attributes);
      def.unsupported = WithDefaults(entry.unsupported, def.attributes);
    } else if (entry.make != nullptr || entry.unsupported) {
      Report(Concat("operator ", QualifiedName(key),
                    " has a kernel but no definition; add contrib_ops/<family>/<op>.py beside it"));
    }
  }
};

OpRegistry::OpRegistry(std::function<void()> load) : impl_(std::make_unique<Impl>(std::move(load))) {}

OpRegistry::~OpRegistry() = default;

OpRegistry& OpRegistry::Instance() {
  static OpRegistry& registry = *new OpRegistry(&LoadKernelLibrary);  // never destroyed: see Runtime::Instance
  return registry;
}

void OpRegistry::Add(OpDef def) {
  Impl& r = *impl_;
  std::lock_guard lock(r.mutex);
  const Key key = KeyOf(def.domain, def.type);
  Impl::Entry& entry = r.EntryOf(key);
  if (def.make == nullptr) r.Report(Concat("operator ", QualifiedName(key), " was registered without a kernel"));
  if (def.since > def.until)
    r.Report(Concat("operator ", QualifiedName(key), ": expected since <= until, got ", def.since, " and ", def.until));
  for (const auto& other : entry.versions)
    if (def.since <= other->until && other->since <= def.until)
      r.Report(Concat("operator ", QualifiedName(key), " was registered twice for version ",
                      std::max(def.since, other->since)));
  if (def.min_inputs == 0)
    for (const ArgDef& input : def.inputs) def.min_inputs += input.optional ? 0 : 1;
  def.make = WithDefaults(std::move(def.make), def.attributes);
  def.unsupported = WithDefaults(std::move(def.unsupported), def.attributes);
  entry.versions.push_back(std::make_unique<OpDef>(std::move(def)));
}

void OpRegistry::AddSchema(OpDef def) {
  Impl& r = *impl_;
  std::lock_guard lock(r.mutex);
  const Key key = KeyOf(def.domain, def.type);
  Impl::Entry& entry = r.EntryOf(key);
  if (!entry.versions.empty()) return r.Report(Concat("operator ", QualifiedName(key), " was defined twice"));
  entry.has_schema = true;
  entry.versions.push_back(std::make_unique<OpDef>(std::move(def)));
}

void OpRegistry::AddKernel(const std::string& domain, const std::string& type, KernelFactory make) {
  Impl& r = *impl_;
  std::lock_guard lock(r.mutex);
  const Key key = KeyOf(domain, type);
  Impl::Entry& entry = r.EntryOf(key);
  if (entry.make != nullptr) return r.Report(Concat("operator ", QualifiedName(key), " has two kernels"));
  entry.make = make;
}

void OpRegistry::AddAlias(const std::string& domain, const std::string& alias, size_t input_count,
                          const std::string& type) {
  Impl& r = *impl_;
  std::lock_guard lock(r.mutex);
  r.EntryOf(KeyOf(domain, alias)).aliases.emplace_back(input_count, KeyOf(domain, type));
}

void OpRegistry::AddUnsupported(const std::string& domain, const std::string& type,
                                std::function<std::string(const NodeView&)> unsupported) {
  Impl& r = *impl_;
  std::lock_guard lock(r.mutex);
  r.EntryOf(KeyOf(domain, type)).unsupported = std::move(unsupported);
}

const OpDef* OpRegistry::Find(const std::string& domain, const std::string& type, int since_version) const {
  Impl& r = *impl_;
  const auto lock = r.Ready();
  const auto it = r.entries.find(KeyOf(domain, type));
  if (it == r.entries.end()) return nullptr;
  for (const auto& def : it->second.versions)
    if (def->make != nullptr && def->since <= since_version && since_version <= def->until) return def.get();
  return nullptr;
}

const OpDef* OpRegistry::FindNewest(const std::string& domain, const std::string& type) const {
  Impl& r = *impl_;
  const auto lock = r.Ready();
  const auto it = r.entries.find(KeyOf(domain, type));
  if (it == r.entries.end()) return nullptr;
  const OpDef* newest = nullptr;
  for (const auto& def : it->second.versions)
    if (def->make != nullptr && (newest == nullptr || def->until > newest->until)) newest = def.get();
  return newest;
}

std::vector<const OpDef*> OpRegistry::All() const {
  Impl& r = *impl_;
  const auto lock = r.Ready();
  std::vector<const OpDef*> all;
  for (const auto& [key, entry] : r.entries)
    for (const auto& def : entry.versions)
      if (def->make != nullptr) all.push_back(def.get());
  return all;
}

namespace {

// The definition of argument i: the last one repeats when it is variadic.
const ArgDef* ArgAt(const std::vector<ArgDef>& args, size_t i) {
  if (i < args.size()) return &args[i];
  return !args.empty() && args.back().variadic ? &args.back() : nullptr;
}

// If `min_inputs` is set, only the inputs below it can be required; optional and variadic ones never are.
bool Required(const OpDef& def, size_t i) {
  const bool counted = def.min_inputs == 0 || i < def.min_inputs;
  return counted && i < def.inputs.size() && !def.inputs[i].optional && !def.inputs[i].variadic;
}

}  // namespace

std::string WhyUnsupported(const OpDef& def, const NodeView& node) {
  if (def.make == nullptr) return "the operator has no kernel";
  if (node.inputs.size() < def.min_inputs)
    return Concat("expected at least ", def.min_inputs, " inputs, got ", node.inputs.size());
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ArgDef* arg = ArgAt(def.inputs, i);
    if (arg == nullptr) return Concat("expected at most ", def.inputs.size(), " inputs, got ", node.inputs.size());
    const DType dtype = node.inputs[i];
    if (dtype == DType::kUndefined) {
      if (Required(def, i)) return Concat("expected input ", arg->name, ", got none");
    } else if (!arg->dtypes.Empty() && !arg->dtypes.Contains(dtype)) {
      return Concat("input ", arg->name, ": expected ", arg->dtypes.ToString(), ", got ", NameOf(dtype));
    }
  }
  for (size_t i = node.inputs.size(); i < def.inputs.size(); ++i)
    if (Required(def, i)) return Concat("expected input ", def.inputs[i].name, ", got none");
  for (const AttrDef& attr : def.attributes)
    if (attr.required && !node.attributes.Has(attr.name)) return Concat("expected attribute ", attr.name, ", got none");
  if (node.output_count > 0 && ArgAt(def.outputs, node.output_count - 1) == nullptr)
    return Concat("expected at most ", def.outputs.size(), " outputs, got ", node.output_count);
  return def.unsupported ? def.unsupported(node) : std::string();
}

}  // namespace npu
