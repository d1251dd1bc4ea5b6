#include "ep/provider/control_flow.h"

#include <algorithm>
#include <array>

#include "ep/provider/copy.h"
#include "ep/provider/session_runs.h"
#include "ep/provider/sync_stream.h"
#include "ep/runtime/run_to_end.h"
#include "ep/runtime/strided_copy.h"

namespace npu::provider {
namespace {

OrtKernelImpl* NewIf(const Api& api, DeviceState&, const OrtKernelInfo* info) {
  OrtKernelImpl* kernel = nullptr;
  api.Check(api.ep.CreateIfKernel(info, &kernel));
  return kernel;
}

Place PlaceOfValue(const Api& api, const OrtValue* value) {
  const OrtMemoryDevice* memory = api.ep.Value_GetMemoryDevice(value);
  return api.ep.MemoryDevice_GetDeviceType(memory) == OrtMemoryInfoDeviceType_CPU ? Place::kHost : Place::kDevice;
}

const char* DataOf(const Api& api, const OrtValue* value) {
  const void* data = nullptr;
  api.Check(api.ort.GetTensorData(value, &data));
  return static_cast<const char*>(data);
}

// Joins what each iteration of a Loop has returned.
class LoopHelper final : public OrtLoopKernelHelper {
 public:
  LoopHelper(const Api& api, DeviceState& device) : OrtLoopKernelHelper{}, api_(api), device_(device) {
    ort_version_supported = ORT_API_VERSION;
    Release = [](OrtLoopKernelHelper* self) noexcept { delete static_cast<LoopHelper*>(self); };
    ConcatOutput = [](OrtLoopKernelHelper* self, void* stream, const OrtValue* const* values, size_t count,
                      void* output, size_t bytes) noexcept {
      auto& me = *static_cast<LoopHelper*>(self);
      return Guard(me.api_.ort,
                   [&] { me.Join(static_cast<Stream*>(stream), values, count, static_cast<char*>(output), bytes); });
    };
  }

 private:
  void Join(Stream* stream, const OrtValue* const* values, size_t count, char* output, size_t bytes) const {
    const bool own = stream == nullptr || SessionRuns::EnterCurrent(*stream);
    for (size_t i = 0; i < count; ++i) {
      size_t size = 0;
      api_.Check(api_.ort.GetTensorSizeInBytes(values[i], &size));
      NPU_CHECK(size <= bytes, "[Loop] expected iterations that return ", bytes, " bytes more, got ", size);
      if (size > 0)
        CopyBytes(device_, stream, output, Place::kDevice, DataOf(api_, values[i]), PlaceOfValue(api_, values[i]),
                  size);
      output += size;
      bytes -= size;
    }
    if (!own) stream->Synchronize();
  }

  const Api& api_;
  DeviceState& device_;
};

OrtKernelImpl* NewLoop(const Api& api, DeviceState& device, const OrtKernelInfo* info) {
  OrtKernelImpl* kernel = nullptr;
  api.Check(api.ep.CreateLoopKernel(info, new LoopHelper(api, device), &kernel));
  return kernel;
}

// Moves the axis that a Scan walks to the front, or back.
class ScanHelper final : public OrtScanKernelHelper {
 public:
  ScanHelper(const Api& api, DeviceState& device) : OrtScanKernelHelper{}, api_(api), device_(device) {
    ort_version_supported = ORT_API_VERSION;
    Release = [](OrtScanKernelHelper* self) noexcept { delete static_cast<ScanHelper*>(self); };
    Transpose = [](OrtScanKernelHelper* self, const size_t* permutation, size_t rank, const OrtValue* input,
                   OrtSyncStream* stream, OrtValue* output) noexcept {
      auto& me = *static_cast<ScanHelper*>(self);
      return Guard(me.api_.ort, [&] { me.Permute(permutation, rank, input, StreamOf(me.api_, stream), output); });
    };
  }

 private:
  void Permute(const size_t* permutation, size_t rank, const OrtValue* input, Stream* stream, OrtValue* output) const {
    const TensorType type = CopiedType(api_, input);
    NPU_CHECK(type.rank == rank, "[Scan] expected a permutation of ", type.rank, " axes, got ", rank);
    const Shape from(type.dims, type.rank);
    const auto dense = DenseStrides(from);
    Shape shape;
    std::array<int64_t, Shape::kMaxRank> strides{};
    for (size_t d = 0; d < rank; ++d) {
      shape.push_back(from[static_cast<int>(permutation[d])]);
      strides[d] = dense[permutation[d]];
    }
    if (shape.Elements() == 0) return;
    void* to = nullptr;
    api_.Check(api_.ort.GetTensorMutableData(output, &to));
    const auto launch = [&](Stream& on) {
      LaunchStridedCopy(on, "Scan", MakeStridedPair(shape, strides), BytesFor(DTypeOfElement(type.element), 1), to,
                        DataOf(api_, input));
    };
    if (stream != nullptr) {
      const bool own = SessionRuns::EnterCurrent(*stream);
      launch(*stream);
      if (!own) stream->Synchronize();
      return;
    }
    const DeviceState::OwnStream own(device_);
    RunToEnd(*own, [&] { launch(*own); });
  }

  const Api& api_;
  DeviceState& device_;
};

OrtKernelImpl* NewScan(const Api& api, DeviceState& device, const OrtKernelInfo* info) {
  OrtKernelImpl* kernel = nullptr;
  api.Check(api.ep.CreateScanKernel(info, new ScanHelper(api, device), &kernel));
  return kernel;
}

bool OnDevice(const ValueView& value) {
  return value.info == nullptr || (value.is_tensor && kFixedWidth.Contains(value.dtype));
}

}  // namespace

const std::vector<ControlFlow>& ControlFlows() {
  static const ArgDef cond{.name = "cond", .dtypes = {DType::kBool}, .optional = true, .cpu = true};
  static const ArgDef trips{.name = "M", .dtypes = {DType::kInt64}, .optional = true, .cpu = true};
  static const std::vector<ControlFlow> flows = {
      {{.type = "If", .since = 1, .until = 25, .inputs = {cond}}, &NewIf},
      {{.type = "Loop", .since = 1, .until = 25, .inputs = {trips, cond}}, &NewLoop},
      {{.type = "Scan", .since = 9, .until = 25}, &NewScan},  // onnxruntime makes kernels of no earlier version
  };
  return flows;
}

const ControlFlow* FindControlFlow(const GraphNode& node) {
  for (const ControlFlow& flow : ControlFlows()) {
    if (node.domain.empty() && node.view.op_type == flow.def.type && node.view.since_version >= flow.def.since &&
        node.view.since_version <= flow.def.until)
      return &flow;
  }
  return nullptr;
}

std::string WhyControlFlowUnsupported(const GraphNode& node, const Options& options) {
  const std::string& type = node.view.op_type;
  // Onnxruntime 1.26 and later keeps a run's streams as long as the thread that called run, but those of a body as long
  // as its own thread, with the stream of the node that has the body among them: a dangling pointer for the next run.
  if (options.parallel) {
    return type +
           " runs on the NPU in a session with SessionOptions.execution_mode ORT_SEQUENTIAL only, got ORT_PARALLEL";
  }
  if (options.graphs) return type + " decides on the host what runs, which a captured graph cannot";
  if (!std::all_of(node.inputs.begin(), node.inputs.end(), OnDevice) ||
      !std::all_of(node.outputs.begin(), node.outputs.end(), OnDevice))
    return type + " of values that the NPU cannot hold";
  return "";
}

}  // namespace npu::provider
