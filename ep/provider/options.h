// Provider options: one table of names, meanings and allowed values, which parsing and the documentation use.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ep/provider/abi.h"
#include "ep/runtime/dtype.h"

namespace npu::provider {

struct Options {
  int device_id = 0;
  bool refuse_cpu_fallback = false;
  bool shapes_on_cpu = true;                 // false: onnxruntime refuses sessions with any node on the CPU
  DType float32_products = DType::kFloat32;  // see KernelInfo
  bool graphs = false;                       // see SessionGraphs
  uintptr_t compute_stream = 0;              // see SessionRuns
  bool host_memory = false;                  // all values are there (docs/decisions/0021)
  bool fusion = true;                        // see PlanFusions
  std::set<std::string> cpu_operators = {};  // by OperatorName
  bool compile = false;                      // onnxruntime stores a compiled model (docs/decisions/0035)
  bool embed_context = false;                // its packed constants are inside
  std::string context_path = "";             // its file, if the caller names it
  bool memory_plan = true;                   // onnxruntime plans which values of a run share memory
  bool parallel = false;                     // onnxruntime's own threads call kernels (ORT_PARALLEL)
  bool communicates = false;                 // with other ranks, over MPI; what follows says how
  int rank = -1, world_size = -1;            // as the caller expects them; -1: any
  std::string groups = "world";              // see ParseGroups
  std::string mpi_library = "libmpi_abi.so.1";
  std::chrono::seconds communication_timeout{600};
};

// How users name an operator: its type, behind "domain:" unless that is ONNX's own.
inline std::string OperatorName(const std::string& domain, const std::string& type) {
  return domain.empty() ? type : domain + ":" + type;
}

struct OptionSpec {
  const char* name;
  const char* values;    // allowed values, for error messages and docs/provider_options.md
  const char* fallback;  // the default
  const char* help;
  // False when the value is not allowed.
  bool (*parse)(const std::string& value, Options& options);
};

const std::vector<OptionSpec>& OptionSpecs();

// The handle of a stream, as in torch.npu.Stream.npu_stream; false when `text` is not such a number.
bool ParseStreamHandle(const std::string& text, uintptr_t& out);

// Reads the options of this provider from a session's options. `device_id` is the logical device of the session. Throws
// an error that names the key and the allowed values.
Options ReadOptions(const Api& api, const OrtSessionOptions* session_options, int device_id);

}  // namespace npu::provider
