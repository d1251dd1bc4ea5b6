// The library's exported C functions.

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ep/provider/bound_values.h"
#include "ep/provider/custom_ops.h"
#include "ep/provider/ep.h"
#include "ep/provider/factory.h"

#define NPU_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Null when this onnxruntime is older than the headers the library was built with.
const OrtApi* ApiOf(const OrtApiBase* base) { return base->GetApi(ORT_API_VERSION); }

OrtStatus* TooOld(const OrtApiBase* base) {
  const std::string message = npu::Concat("NPUExecutionProvider expected onnxruntime >= 1.", ORT_API_VERSION, ", got ",
                                          base->GetVersionString());
  for (uint32_t version = ORT_API_VERSION; version-- > 1;) {
    if (const OrtApi* api = base->GetApi(version)) return api->CreateStatus(ORT_FAIL, message.c_str());
  }
  return nullptr;
}

// Sessions hold the domain for any length of time, and ORT may be unloaded before static destructors run, so domains
// are never freed. One per ORT image.
OrtCustomOpDomain* DomainFor(const OrtApi& ort) {
  static auto& mutex = *new std::mutex;
  static auto& domains = *new std::map<const OrtApi*, std::unique_ptr<npu::provider::CustomOpDomain>>;
  std::lock_guard lock(mutex);
  auto& domain = domains[&ort];
  if (domain == nullptr) domain = std::make_unique<npu::provider::CustomOpDomain>(ort);
  return domain->get();
}

}  // namespace

NPU_EXPORT OrtStatus* CreateEpFactories(const char* /*registered_name*/, const OrtApiBase* base,
                                        const OrtLogger* logger, OrtEpFactory** factories, size_t max_factories,
                                        size_t* num_factories) noexcept {
  *num_factories = 0;
  const OrtApi* ort = ApiOf(base);
  if (ort == nullptr) return TooOld(base);
  return npu::provider::Guard(*ort, [&] {
    NPU_CHECK(max_factories >= 1, "expected room for 1 factory, got none");
    factories[0] = new npu::provider::Factory(npu::provider::Api{*ort, *ort->GetEpApi()}, logger);
    *num_factories = 1;
  });
}

NPU_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) noexcept {
  static_cast<npu::provider::Factory*>(factory)->RemoveUser();
  return nullptr;
}

// For SessionOptions.register_custom_ops_library.
NPU_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) noexcept {
  const OrtApi* ort = ApiOf(base);
  if (ort == nullptr) return TooOld(base);
  return npu::provider::Guard(*ort, [&] {
    const npu::provider::Api api{*ort, *ort->GetEpApi()};
    api.Check(ort->AddCustomOpDomain(options, DomainFor(*ort)));
  });
}

// For onnxruntime_npu.assignment: see ep.h.
NPU_EXPORT void NpuBeginAssignmentCapture() noexcept { npu::provider::BeginAssignmentCapture(); }

// JSON, valid until the next call on this thread; "" when no NPU provider was created meanwhile.
NPU_EXPORT const char* NpuEndAssignmentCapture() noexcept {
  static thread_local std::string json;
  try {
    const auto log = npu::provider::EndAssignmentCapture();
    json = log == nullptr ? "" : log->ToJson();
    return json.c_str();
  } catch (...) {
    return "";
  }
}

// What this thread's next runs have bound, in UTF-8: see bound_values.h.
NPU_EXPORT void NpuSetBoundValues(const char* values) noexcept {
  try {
    npu::provider::SetBoundValues(values);
  } catch (...) {
    npu::provider::SetBoundValues({});
  }
}

// For docs and `onnxruntime-npu info`: the options, as a table of name, values, default and meaning, one per line.
NPU_EXPORT const char* NpuProviderOptions() noexcept {
  static thread_local std::string table;
  try {
    table.clear();
    for (const auto& spec : npu::provider::OptionSpecs()) {
      table += npu::Concat(spec.name, '\t', spec.values, '\t', spec.fallback, '\t', spec.help, '\n');
    }
    return table.c_str();
  } catch (...) {
    return "";
  }
}
