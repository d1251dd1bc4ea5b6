// How the outputs of a convolution are divided among threads: lines of images, and panels of channels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/runtime/kernel_api.h"

namespace npu::channels_last {

// Lines [begin, end) of an image, for the panels [panel_begin, panel_end).
struct Piece {
  int64_t image, begin, end, panel_begin, panel_end;
};

class Pieces {
 public:
  // Of at most `most` of the `lines` of each image.
  Pieces(int64_t images, int64_t lines, int64_t most, int64_t panels) : lines_(lines), panels_(panels) {
    const int64_t threads = NumThreads();
    of_image_ = (lines + most - 1) / most;
    if (images * of_image_ >= threads) of_image_ = std::min(lines, (of_image_ + threads - 1) / threads * threads);
    // With too few of them, threads share the channels.
    groups_ = images * of_image_ >= threads ? 1 : std::min(panels, threads);
    count_ = images * of_image_ * groups_;
  }

  int64_t count() const { return count_; }
  Piece At(int64_t i) const {
    const int64_t group = i % groups_, piece = i / groups_ % of_image_, image = i / groups_ / of_image_;
    return {image, piece * lines_ / of_image_, (piece + 1) * lines_ / of_image_, group * panels_ / groups_,
            (group + 1) * panels_ / groups_};
  }

 private:
  int64_t lines_, panels_, of_image_, groups_, count_;
};

}  // namespace npu::channels_last
