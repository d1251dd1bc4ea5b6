#include "ep/provider/options.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "ep/provider/control_flow.h"
#include "ep/provider/session_groups.h"
#include "ep/runtime/op_registry.h"

namespace npu::provider {
namespace {

// ORT passes provider options as session configuration under the lower-cased provider name.
constexpr std::string_view kPrefix = "ep.npuexecutionprovider.";
// Set by the package, because a provider cannot read SessionOptions.enable_mem_reuse.
constexpr std::string_view kNoMemoryPlanKey = "npu.no_memory_plan";
// Set by the package: with "1" the session has SessionOptions.execution_mode ORT_PARALLEL, which a provider cannot
// read.
constexpr std::string_view kParallelKey = "npu.parallel";
// Set by the package when a session shall store its graph, which onnxruntime refuses for fused nodes.
constexpr std::string_view kNoFusionKey = "npu.no_fusion";
// Onnxruntime's own: with "1" it stores a compiled model, in this file, and its packed constants inside or beside it.
constexpr std::string_view kCompileKey = "ep.context_enable", kContextPathKey = "ep.context_file_path",
                           kEmbedKey = "ep.context_embed_mode";
// Onnxruntime's own: with "1" it refuses fused nodes.
constexpr std::string_view kNoCompileKey = "session.disable_model_compile";
// Set by the package, where its environment has one.
constexpr std::string_view kMpiLibraryKey = "npu.mpi_library";
// Onnxruntime's own: with "1" it fails a session that has a node on the CPU.
constexpr std::string_view kNoCpuKey = "session.disable_cpu_ep_fallback";

bool ParseIndex(const std::string& text, int& out) {
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && stop == end && out >= 0;
}

bool ParseFlag(const std::string& text, bool& out) {
  out = text == "1";
  return out || text == "0";
}

bool HasOperator(const std::string& domain, const std::string& type) {
  if (OpRegistry::Instance().FindNewest(domain, type) != nullptr) return true;
  const std::vector<ControlFlow>& flows = ControlFlows();
  return domain.empty() &&
         std::any_of(flows.begin(), flows.end(), [&](const ControlFlow& flow) { return flow.def.type == type; });
}

// Names that the NPU does not have are refused: they would have no effect.
bool ParseOperators(const std::string& text, std::set<std::string>& out) {
  if (text == "none") return true;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    const size_t colon = name.rfind(':');
    const bool standard = colon == std::string::npos;
    if (!HasOperator(standard ? "" : name.substr(0, colon), standard ? name : name.substr(colon + 1))) return false;
    out.insert(name);
    begin = end + 1;
  }
  return true;
}

std::string KnownNames() {
  std::string names;
  for (const OptionSpec& spec : OptionSpecs()) names += (names.empty() ? "" : ", ") + std::string(spec.name);
  return names;
}

const OptionSpec* FindSpec(std::string_view name) {
  for (const OptionSpec& spec : OptionSpecs()) {
    if (name == spec.name) return &spec;
  }
  return nullptr;
}

}  // namespace

const std::vector<OptionSpec>& OptionSpecs() {
  static const std::vector<OptionSpec> specs = {
      {"device_id", "the index of a logical NPU: 0, 1, ...", "0",
       "The NPU that the session runs on (see ORT_NPU_DEVICE_COUNT).",
       [](const std::string& value, Options& options) { return ParseIndex(value, options.device_id); }},
      {"cpu_fallback", "allow, refuse", "allow",
       "What to do with nodes that the NPU does not implement: leave them to the CPU, or fail session creation and "
       "name them. Shape arithmetic stays on the CPU either way.",
       [](const std::string& value, Options& options) {
         options.refuse_cpu_fallback = value == "refuse";
         return value == "allow" || value == "refuse";
       }},
      {"cpu_operators", "none, or names of operators that the NPU has, separated by commas: Conv,com.microsoft:Gelu",
       "none",
       "Operators that are left to the CPU although the NPU implements them, to compare results or times. An operator "
       "of another domain than ONNX's has it in front of its name.",
       [](const std::string& value, Options& options) { return ParseOperators(value, options.cpu_operators); }},
      {"float32_matmul_precision", "highest, medium", "highest",
       "How MatMul, Gemm, npu_linear and chains of convolutions multiply float32 with a constant weight, and "
       "Attention, MultiHeadAttention and the groups of nodes that are one of them multiply queries with keys and "
       "weights with values, as torch names it. highest: in float32. "
       "medium: both operands are rounded to bfloat16 first, each by at most 2^-8 of its value, and products are "
       "summed in float32; weights take half the memory. Of a sum of products, the error is at most 2^-7 times the sum "
       "of their magnitudes. Values between the operators of a chain of convolutions are rounded as they are stored, "
       "too, those that depthwise convolutions, pools and residuals read included; what leaves the chain is float32. "
       "Attention of fewer than 32 queries stays in float32.",
       [](const std::string& value, Options& options) {
         options.float32_products = value == "medium" ? DType::kBFloat16 : DType::kFloat32;
         return value == "highest" || value == "medium";
       }},
      {"enable_npu_graph", "0, 1", "0",
       "Captures the launches of a run and replays them in later runs, without onnxruntime's work for each node, as "
       "enable_cuda_graph does. Inputs and outputs are bound once in NPU memory (IOBinding) and their content is "
       "updated in place: a replay reads and writes the addresses that were captured, and fails in Python if others "
       "are bound. The run option gpu_graph_id numbers graphs, one per set of shapes; -1 runs without a graph.",
       [](const std::string& value, Options& options) { return ParseFlag(value, options.graphs); }},
      {"host_memory", "0, 1", "0",
       "1: inputs, outputs and all values between them are in host memory, where kernels read and write them in place. "
       "Nothing is copied for callers whose values are in host memory, such as onnxruntime-genai with its caches; a "
       "value bound as input and output is updated in place. Every node has to run on the NPU. Kernels run on the "
       "thread that calls run. Without effect on a device whose kernels do not reach host memory, and not together "
       "with enable_npu_graph.",
       [](const std::string& value, Options& options) { return ParseFlag(value, options.host_memory); }},
      {"fusion", "0, 1", "1",
       "Computes groups of nodes as one: a convolution with its activation; a product with its gate; the rotation "
       "of queries and keys with the writes to caches; attention, a rotary embedding, a normalisation or an "
       "activation that is spelled out in single operators; an operator between DequantizeLinear and "
       "QuantizeLinear, on integers. Keeps values between convolutions in memory with their channels last. "
       "assignment(session) names the operator (fused_into). Results differ by rounding. Without effect with "
       "host_memory, and where onnxruntime stores the session's graph.",
       [](const std::string& value, Options& options) { return ParseFlag(value, options.fusion); }},
      {"user_compute_stream", "the handle of a stream of the NPU, or 0", "0",
       "The stream that runs are ordered with: a run comes after what was enqueued on it before, and what is enqueued "
       "on it afterwards comes after the run. The handle is torch.npu.Stream.npu_stream; the run option of the same "
       "name says it for one run. 0: the current stream of the thread that calls run or run_async.",
       [](const std::string& value, Options& options) { return ParseStreamHandle(value, options.compute_stream); }},
      {"communicator", "none, mpi", "none",
       "mpi: operators that communicate, such as npu_mm_all_reduce_base, exchange data with the other processes that "
       "mpiexec has started. Each of them makes a session, and the first waits for the others.",
       [](const std::string& value, Options& options) {
         options.communicates = value == "mpi";
         return value == "none" || value == "mpi";
       }},
      {"groups", "names of groups, separated by ;, each followed by = and its ranks unless it has all", "world",
       "The groups of ranks that operators may name as hcom: 'tp=0,1;ep' is a group tp of two ranks and a group ep of "
       "all. All ranks give the same groups; a rank need not belong to each of them.",
       [](const std::string& value, Options& options) {
         std::vector<GroupSpec> groups;
         options.groups = value;
         return ParseGroups(value, groups);
       }},
      {"rank", "a number from 0", "",
       "The rank that this process expects to be; session creation fails if MPI says another.",
       [](const std::string& value, Options& options) { return value.empty() || ParseIndex(value, options.rank); }},
      {"world_size", "a number from 1", "",
       "The number of ranks that this process expects; session creation fails if MPI says another.",
       [](const std::string& value, Options& options) {
         return value.empty() || (ParseIndex(value, options.world_size) && options.world_size > 0);
       }},
      {"communication_timeout", "seconds from 1 to 86400", "600",
       "How long a rank waits for the others, in session creation and in each exchange, until the operator fails and "
       "names the ranks that are missing. A group keeps the timeout of its first session.",
       [](const std::string& value, Options& options) {
         int seconds = 0;
         const bool parsed = ParseIndex(value, seconds);
         options.communication_timeout = std::chrono::seconds(seconds);
         return parsed && seconds >= 1 && seconds <= 86400;
       }},
      {"mpi_library", "a path, or a name that the dynamic linker finds", "libmpi_abi.so.1",
       "The library of MPI, with the binary interface of the MPI 5 standard. In a Python environment with mpich "
       "(`pip install mpich`), the default is that one.",
       [](const std::string& value, Options& options) {
         options.mpi_library = value;
         return !value.empty();
       }},
  };
  return specs;
}

bool ParseStreamHandle(const std::string& text, uintptr_t& out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && stop == end;
}

Options ReadOptions(const Api& api, const OrtSessionOptions* session_options, int device_id) {
  OrtKeyValuePairs* raw = nullptr;
  api.Check(api.ort.GetSessionOptionsConfigEntries(session_options, &raw));
  auto entries = Own(raw, api.ort.ReleaseKeyValuePairs);
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  api.ort.GetKeyValuePairs(entries.get(), &keys, &values, &count);

  Options options;
  options.device_id = device_id;
  bool may_compile = true;
  for (size_t i = 0; i < count; ++i) {
    std::string_view key = keys[i];
    if (key == kNoMemoryPlanKey) options.memory_plan = false;
    if (key == kParallelKey) options.parallel = std::string_view(values[i]) == "1";
    if (key == kNoFusionKey) may_compile = false;
    if (key == kNoCompileKey) may_compile = may_compile && std::string_view(values[i]) != "1";
    if (key == kCompileKey) options.compile = std::string_view(values[i]) == "1";
    if (key == kEmbedKey) options.embed_context = std::string_view(values[i]) == "1";
    if (key == kContextPathKey) options.context_path = values[i];
    if (key == kMpiLibraryKey && options.mpi_library == Options().mpi_library) options.mpi_library = values[i];
    if (key == kNoCpuKey) options.shapes_on_cpu = std::string_view(values[i]) != "1";
    if (!key.starts_with(kPrefix)) continue;
    key.remove_prefix(kPrefix.size());
    const OptionSpec* spec = FindSpec(key);
    NPU_CHECK(spec != nullptr, "NPUExecutionProvider: unknown provider option '", key,
              "'; known options: ", KnownNames());
    NPU_CHECK(spec->parse(values[i], options), "NPUExecutionProvider: provider option '", key, "' expected ",
              spec->values, "; got '", values[i], "'");
  }
  // All values of fused nodes are in device memory.
  options.fusion = options.fusion && may_compile && !options.host_memory;
  NPU_CHECK(!options.host_memory || !options.graphs,
            "NPUExecutionProvider: provider option 'host_memory' expected a session without enable_npu_graph: a graph "
            "replays on values in NPU memory");
  NPU_CHECK(!options.host_memory || !options.compile,
            "NPUExecutionProvider: provider option 'host_memory' expected a session without ep.context_enable: a "
            "compiled model keeps values in NPU memory");
  options.compile = options.compile && may_compile;
  return options;
}

}  // namespace npu::provider
