// Convolutions of planes with few positions and many channels, where the weight is most of what is read: it lies in
// panel order, and all positions are multiplied by a panel at once. The product has a row for each position, so the
// result is transposed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/convolution/columns.h"
#include "ep/kernels/convolution/finish.h"
#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/gemm/gemm.h"

namespace npu::convolution {

struct FewPositions {
  static constexpr int64_t kColumnsBytes = 4 << 20;  // of the images that are multiplied together
  // Of which a line of the product has a position: those that are transposed together.
  static constexpr int64_t kPlanesTogether = 16;
  // Whether a convolution is one; weights of other types or groups have no panels.
  static bool Fits(int64_t outputs, int64_t channels_out) { return outputs <= 64 && channels_out >= 64; }

  Taps taps;
  DType dtype;
  int64_t images, channels_in, channels_out;
  const char* x;
  gemm::PackedMatrix weight;  // [channels in * taps, channels out]
  TensorView bias;
  Finish finish;
  // Scratch memory of the sizes below.
  char* columns;
  char* product;

  int64_t depth() const { return channels_in * taps.count(); }
  int64_t bytes() const { return BitsOf(dtype) / 8; }
  // The images that are multiplied together.
  int64_t Together() const {
    return std::clamp<int64_t>(kColumnsBytes / (depth() * taps.outputs() * bytes()), 1, images);
  }
  size_t ColumnsBytes() const { return BytesFor(dtype, Shape{Together(), depth(), taps.outputs()}.Elements()); }
  size_t ProductBytes() const { return BytesFor(dtype, Shape{Together(), channels_out, taps.outputs()}.Elements()); }

  void Run() const {
    DispatchSize(static_cast<int>(bytes()), [&](auto element) {
      for (int64_t image = 0; image < images; image += Together())
        RunImages<decltype(element)>(image, std::min(Together(), images - image));
    });
  }

 private:
  template <class U>
  void RunImages(int64_t first, int64_t count) const {
    const int64_t outputs = taps.outputs(), positions = count * outputs;
    const U* planes = reinterpret_cast<const U*>(x) + first * channels_in * taps.inputs();
    U* rows = reinterpret_cast<U*>(columns);
    const int64_t work = std::max<int64_t>(1, taps.count() * outputs);
    ParallelFor(count * channels_in, std::max<int64_t>(1, kCheapGrain / work), [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t image = begin / channels_in, stop = std::min(end, (image + 1) * channels_in);
        const int64_t channel = begin - image * channels_in;
        ReadColumns(taps, planes + begin * taps.inputs(), stop - begin, 0, outputs,
                    rows + channel * taps.count() * positions + image * outputs, positions);
        begin = stop;
      }
    });
    gemm::Epilogue epilogue;
    if (bias) epilogue.addend = {bias.data, dtype, 0, 1};
    const gemm::Matrix pixels{rows, positions, depth(), 1, positions};
    gemm::Multiply(pixels, weight, {product, dtype, channels_out}, epilogue);
    const U* from = reinterpret_cast<const U*>(product);
    const int64_t first_plane = first * channels_out;
    U* to = finish.y.as<U>() + first_plane * outputs;
    ParallelFor(count * channels_out, std::max<int64_t>(1, kCheapGrain / outputs),
                [=, this](int64_t begin, int64_t end) {
                  for (int64_t plane = begin, next; plane < end; plane = next) {
                    const int64_t image = plane / channels_out;
                    next = std::min({end, plane + kPlanesTogether, (image + 1) * channels_out});
                    const U* source = from + image * outputs * channels_out + plane % channels_out;
                    for (int64_t p = 0; p < outputs; ++p)
                      for (int64_t i = 0; i < next - plane; ++i)
                        to[(plane + i) * outputs + p] = source[p * channels_out + i];
                  }
                  finish.InPlace((first_plane + begin) * outputs, (end - begin) * outputs);
                });
  }
};

}  // namespace npu::convolution
