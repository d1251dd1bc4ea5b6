// The next panel of B on its way to the L2 cache while tile registers multiply this one.
#pragma once

#include <cstdint>

namespace npu::gemm {

// Prefetches some lines with every step along K. They are taken from kStreams parts of the panel in turn: one run of
// lines would wait for memory in the line fill buffers, of which tile loads need as many as there are. Of several slow
// runs, each in pages of its own, the processor's L2 prefetcher is ahead, and that one needs no fill buffer.
class PanelStreams {
 public:
  PanelStreams() = default;
  // All of `bytes` at `panel`, but for a rest of less than kStreams lines, in `steps` >= 1 steps.
  PanelStreams(const void* panel, int64_t bytes, int64_t steps)
      : next_(static_cast<const char*>(panel)),
        stride_(bytes / (kStreams * kLine) * kLine),
        back_(kStreams * stride_ - kLine),
        left_(kStreams * stride_ / kLine),
        each_((left_ + steps - 1) / steps) {}
  // What lies `distance` bytes ahead in a panel that is read once, `step` bytes at a time.
  static PanelStreams Ahead(const void* panel, int64_t bytes, int64_t distance, int64_t step) {
    PanelStreams out;
    out.turn_ = INT64_MAX;
    out.next_ = static_cast<const char*>(panel) + distance;
    out.stride_ = kLine;
    out.left_ = bytes / kLine;
    out.each_ = step / kLine;
    return out;
  }

  [[gnu::always_inline]] void Step() {
    constexpr int kSecondLevel = 2;
    if (left_ <= 0) return;
    for (int64_t i = each_; i > 0; --i) {
      __builtin_prefetch(next_, 0, kSecondLevel);
      next_ += stride_;
      if (--turn_ == 0) {  // from the last part back to the first
        next_ -= back_;
        turn_ = kStreams;
      }
    }
    left_ -= each_;
  }

 private:
  static constexpr int64_t kStreams = 8, kLine = 64;
  const char* next_ = nullptr;
  int64_t stride_ = 0, back_ = 0;
  int64_t left_ = 0, each_ = 0;  // lines
  int64_t turn_ = kStreams;      // parts until the first one again
};

}  // namespace npu::gemm
