// Matmuls with packed weights: GFLOP/s and GB/s of weights, each beside the machine's own limit in the same run.
//
//   gemm_benchmark [--dtype float32,bfloat16,float16,int8,int4] [--m 1,2,4,8,16,128,512] [--shape KxN,...]
//                  [--rounds 15] [--group 128] [--hot] [--round-a]
//
// Floats are npu_linear; int8 and int4 are weights of npu_weight_quant_batchmatmul with bfloat16 activations, one scale
// per column and, for int4, per group of rows. With --round-a it rounds the activations to int8 (inner_precise 1).
//
// Cold, the default: the weights cycle through more memory than the caches hold, as a model's layers do; --hot repeats
// one weight. A sample launches as many layers as read 40 MB of weights and waits for the last, as a model does.
// A round measures the limits and then the layers. Figures are medians over the rounds, of each round's best; so are
// the ratios, which compare within a round: a machine may run at half its speed for seconds, when its neighbours are
// busy.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/cpp/machine_limits.h"
#include "ep/runtime/device.h"
#include "ep/runtime/eager_context.h"
#include "ep/runtime/kernel_api.h"

namespace {

using namespace npu;

constexpr size_t kColdBytes = size_t{320} << 20;
constexpr size_t kReadParts = 8;                          // a sample of the read loops takes one of them
constexpr double kSampleBytes = kColdBytes / kReadParts;  // of weights, or one layer

struct Options {
  std::vector<std::string> dtypes{"float32", "bfloat16", "float16"};
  std::vector<std::string> rows{"1", "2", "4", "8", "16", "128", "512"};
  // SmolLM2-135M, then larger models.
  std::vector<std::string> shapes{"576x576",   "576x192",  "576x1536", "1536x576",
                                  "576x49152", "896x4864", "4864x896", "4096x4096"};
  int rounds = 15;
  int64_t group = 128;  // rows that share a scale, of int4
  bool hot = false, round_a = false;
};

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) out.push_back(part);
  return out;
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--hot" || name == "--round-a") {
      (name == "--hot" ? options.hot : options.round_a) = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (name == "--dtype" && !value.empty()) {
      options.dtypes = Split(value);
    } else if (name == "--m" && !value.empty()) {
      options.rows = Split(value);
    } else if (name == "--shape" && !value.empty()) {
      options.shapes = Split(value);
    } else if (name == "--rounds" && std::atoi(value.c_str()) > 0) {
      options.rounds = std::atoi(value.c_str());
    } else if (name == "--group" && std::atoi(value.c_str()) >= 32 && std::atoi(value.c_str()) % 32 == 0) {
      options.group = std::atoi(value.c_str());
    } else {
      std::fprintf(
          stderr,
          "expected --dtype, --m, --shape, --rounds N, --group N (a multiple of 32), --hot or --round-a, got %s %s\n",
          name.c_str(), value.c_str());
      std::exit(2);
    }
  }
  return options;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Memory of the device, filled with values that are neither zero nor denormal.
class DeviceTensor {
 public:
  DeviceTensor(Device& device, DType dtype, const Shape& shape) : device_(device) {
    view_ = {device.allocator().Allocate(BytesFor(dtype, shape.Elements()), device.default_stream()), dtype, true,
             shape};
    std::mt19937 generator(1);
    uint16_t* halves = view_.as<uint16_t>();
    for (size_t i = 0; i < view_.bytes() / 2; ++i)
      halves[i] = static_cast<uint16_t>(0x3800 + (generator() & 0x83ff));  // ordinary as any of the three types
  }
  ~DeviceTensor() { device_.allocator().Free(view_.data); }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;
  const TensorView& view() const { return view_; }

 private:
  Device& device_;
  TensorView view_;
};

// The dtype of the activations for weights of `dtype`.
DType ActivationOf(DType dtype) { return dtype == DType::kInt8 || dtype == DType::kInt4 ? DType::kBFloat16 : dtype; }

// A weight as its operator takes it, and its scales if it is quantised.
class Weight {
 public:
  Weight(Device& device, DType dtype, int64_t k, int64_t n, int64_t group)
      : dtype_(dtype),
        group_(dtype == DType::kInt4 ? group : 0),
        values_(device, dtype == DType::kInt4 ? DType::kInt32 : dtype,
                dtype == DType::kInt8   ? Shape{k, n}
                : dtype == DType::kInt4 ? Shape{k, n / 8}
                                        : Shape{n, k}),
        scales_(device, DType::kBFloat16, group_ != 0 ? Shape{(k + group - 1) / group, n} : Shape{n}) {}
  DType dtype() const { return dtype_; }
  int64_t group() const { return group_; }  // 0: one scale per column
  // Makes the values those of layer `i`: packed weights that are equal are stored once, and would stay in the caches.
  void BecomeLayer(size_t i) {
    *static_cast<uint16_t*>(values_.view().data) = static_cast<uint16_t>(0x3800 + i % 1000);
  }
  bool quantised() const { return ActivationOf(dtype_) != dtype_; }
  const TensorView& values() const { return values_.view(); }
  const TensorView& scales() const { return scales_.view(); }

 private:
  DType dtype_;
  int64_t group_;
  DeviceTensor values_, scales_;
};

class Layer {
 public:
  Layer(Device& device, const Weight& weight, bool round_a) : stream_(device.default_stream()), weight_(weight) {
    KernelInfo info;
    info.op_type = weight.quantised() ? "NPUWeightQuantBatchMatmulV2" : "NPULinear";
    if (weight.quantised()) {
      info.input_shapes = {Shape{-1, weight.values().shape[0]}};
      info.attributes.Set("antiquant_group_size", weight.group());
      info.attributes.Set("inner_precise", static_cast<int64_t>(round_a));
    }
    kernel_ = OpRegistry::Instance().Find("npu", info.op_type.c_str(), 1)->make(info);
    kernel_->PrePack(1, weight.values(), stream_);
  }
  void Launch(const TensorView& x, const TensorView& y) const {
    std::vector<TensorView> inputs{x, {}};
    if (weight_.quantised()) inputs.insert(inputs.end(), {weight_.scales(), {}, {}, {}, {}});
    EagerContext context(stream_, inputs, 1, [&](size_t, DType, const Shape&) { return y.data; });
    kernel_->Compute(context);
  }

 private:
  Stream& stream_;
  const Weight& weight_;
  std::unique_ptr<Kernel> kernel_;
};

void Run(const Options& options, Device& device, DType dtype, int64_t k, int64_t n) {
  Weight weight(device, dtype, k, n, options.group);
  const size_t bytes = weight.values().bytes();
  const size_t copies = options.hot ? 1 : std::clamp<size_t>(kColdBytes / bytes, 2, 1000);
  std::vector<std::unique_ptr<Layer>> layers;
  for (size_t i = 0; i < copies; ++i) {
    weight.BecomeLayer(i);
    layers.push_back(std::make_unique<Layer>(device, weight, options.round_a));
  }
  const DeviceTensor reference(device, DType::kUInt8, {static_cast<int64_t>(kColdBytes)});

  size_t next_layer = 0, next_part = 0;
  for (const std::string& rows : options.rows) {
    const int64_t m = std::max(1, std::atoi(rows.c_str()));
    const DType activation = ActivationOf(dtype);
    const DeviceTensor x(device, activation, {m, k}), y(device, activation, {m, n});
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const int in_sample = static_cast<int>(std::max(1.0, kSampleBytes / static_cast<double>(bytes)));
    const int samples = std::clamp(static_cast<int>(2e9 / flops / in_sample), 1, 10);
    std::vector<double> times, peaks, reads, of_peak, of_read;
    for (int round = 0; round < options.rounds; ++round) {
      const double peak = bench::PeakGflops(options.round_a && weight.quantised() ? DType::kInt8 : activation);
      double read = 0, time = std::numeric_limits<double>::infinity();
      for (size_t loop = 0; loop < bench::kReadLoopCount; ++loop) {
        const size_t part = next_part++ % kReadParts * (kColdBytes / kReadParts);
        const char* data = static_cast<const char*>(reference.view().data) + part;
        read = std::max(read, bench::ReadGbps(loop, data, kColdBytes / kReadParts));
      }
      for (int sample = 0; sample < samples; ++sample) {
        const double begin = bench::Seconds();
        for (int i = 0; i < in_sample; ++i) layers[next_layer++ % copies]->Launch(x.view(), y.view());
        device.default_stream().Synchronize();
        time = std::min(time, (bench::Seconds() - begin) / in_sample);
      }
      times.push_back(time);
      peaks.push_back(peak);
      reads.push_back(read);
      of_peak.push_back(peak > 0 ? flops / time * 1e-9 / peak : 0);
      of_read.push_back(static_cast<double>(bytes) / time * 1e-9 / read);
    }
    const double time = Median(times);
    std::printf("%-9s %6ld %6ld %5ld %10.1f %9.1f %5.2f %8.1f %5.2f %10.1f %8.1f\n", NameOf(dtype),
                static_cast<long>(k), static_cast<long>(n), static_cast<long>(m), time * 1e6, flops / time * 1e-9,
                Median(of_peak), static_cast<double>(bytes) / time * 1e-9, Median(of_read), Median(peaks),
                Median(reads));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  Device& device = Runtime::Instance().device(0);
  std::printf("isa %s, %d threads, weights %s\n", NameOf(ActiveIsa()), NumThreads(), options.hot ? "hot" : "cold");
  std::printf("%-9s %6s %6s %5s %10s %9s %5s %8s %5s %10s %8s\n", "dtype", "K", "N", "M", "us", "GFLOP/s", "/peak",
              "GB/s", "/read", "peak", "read");
  for (const std::string& dtype : options.dtypes)
    for (const std::string& shape : options.shapes) {
      long k = 0, n = 0;
      if (std::sscanf(shape.c_str(), "%ldx%ld", &k, &n) != 2 || k <= 0 || n <= 0) {
        std::fprintf(stderr, "expected a shape KxN, got %s\n", shape.c_str());
        return 2;
      }
      Run(options, device, DTypeFromName(dtype), k, n);
    }
}
