#include "ep/runtime/tensor_dump.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <utility>

#include "ep/runtime/dtype.h"
#include "ep/runtime/error.h"

namespace npu {
namespace {

std::mutex& Mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

TensorDump::Options& Current() {
  static auto& options = *new TensorDump::Options;
  return options;
}

std::atomic<uint64_t> calls{0};

// NumPy's name of the dtype; dtypes that NumPy lacks (bfloat16, float8) are written as unsigned integers of their
// width.
std::string NumpyType(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "<f2";
    case DType::kFloat32:
      return "<f4";
    case DType::kFloat64:
      return "<f8";
    case DType::kBool:
      return "|b1";
    case DType::kInt8:
      return "|i1";
    case DType::kInt16:
      return "<i2";
    case DType::kInt32:
      return "<i4";
    case DType::kInt64:
      return "<i8";
    default:
      return Concat("<u", std::max(BitsOf(dtype) / 8, 1));
  }
}

void WriteNpy(const std::string& file, const TensorView& view) {
  std::string shape;
  for (int64_t dim : view.shape) shape += Concat(dim, ",");
  std::string header =
      Concat("{'descr': '", NumpyType(view.dtype), "', 'fortran_order': False, 'shape': (", shape, "), }");
  constexpr size_t kPreamble = 10;  // magic, version, length
  header.append(63 - (kPreamble + header.size()) % 64, ' ');
  header += '\n';
  std::ofstream out(file, std::ios::binary);
  out.write("\x93NUMPY\x01\x00", 8);
  const auto length = static_cast<uint16_t>(header.size());
  out.put(static_cast<char>(length & 0xff)).put(static_cast<char>(length >> 8)) << header;
  out.write(static_cast<const char*>(view.data),
            static_cast<std::streamsize>(BytesFor(view.dtype, view.shape.Elements())));
  out.close();
  if (!out) Fail(ErrorCode::kInvalidArgument, "dump: could not write ", file);
}

}  // namespace

std::atomic<bool> TensorDump::on_{false};

void TensorDump::Start(Options options) {
  std::error_code error;
  std::filesystem::create_directories(options.path, error);
  NPU_CHECK(!error, "dump: could not make the folder ", options.path, ": ", error.message());
  std::lock_guard lock(Mutex());
  Current() = std::move(options);
  on_.store(true);
}

void TensorDump::Stop() { on_.store(false); }

TensorDump::TensorDump(const std::string& op) {
  std::lock_guard lock(Mutex());
  options_ = Current();
  if (!options_.ops.empty() && std::find(options_.ops.begin(), options_.ops.end(), op) == options_.ops.end()) return;
  prefix_ = Concat(options_.path, "/", op, ".", calls++);
}

void TensorDump::Inputs(Stream& stream, const std::vector<TensorView>& views) const {
  if (options_.inputs) Write(stream, "input", views);
}

void TensorDump::Outputs(Stream& stream, const std::vector<TensorView>& views) const {
  if (options_.outputs) Write(stream, "output", views);
}

void TensorDump::Write(Stream& stream, const char* role, const std::vector<TensorView>& views) const {
  if (prefix_.empty()) return;
  for (size_t i = 0; i < views.size(); ++i) {
    if (!views[i].present) continue;
    const std::string file = Concat(prefix_, ".", role, ".", i, ".npy");
    stream.Launch("dump", Task([file, view = views[i]] { WriteNpy(file, view); }));
  }
}

}  // namespace npu
