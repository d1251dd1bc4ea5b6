// Boxes that suppress those which they overlap by more than a threshold of intersection over union.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ep/kernels/detection/boxes.h"

namespace npu::detection {

// Boxes by columns, so that comparing one with all vectorises.
class BoxColumns {
 public:
  size_t size() const { return size_; }
  Box At(size_t i) const {
    const Block& block = blocks_[i / kBlock];
    const size_t k = i % kBlock;
    return {block.left[k], block.top[k], block.right[k], block.bottom[k]};
  }

  void Add(const Box& box) {
    const size_t k = size_++ % kBlock;
    if (k == 0) blocks_.emplace_back();
    Block& block = blocks_.back();
    block.left[k] = box.left, block.top[k] = box.top, block.right[k] = box.right, block.bottom[k] = box.bottom;
    block.area[k] = box.Area();
  }

  // Whether one overlaps the box by more than the threshold; `floor`: what a union counts at least.
  bool Suppress(const Box& box, float threshold, float floor) const {
    // Products decide in place of quotients, which take longer than all the rest, except within a few roundings of the
    // threshold. The smallest `above` is for threshold 0, as a quotient that is rounded to 0 is not greater.
    const float below = threshold * (1 - 0x1p-20f);
    const float above = std::max(threshold * (1 + 0x1p-20f), std::numeric_limits<float>::min());
    const float area = box.Area();
    for (const Block& block : blocks_) {
      constexpr int kFar = 2;
      int found = 0;  // in one number, since each takes a reduction over the lanes
      block.ForEach(box, area, floor, [&](int overlap, float both, float all) {
        const int far = static_cast<int>(both > above * all), near = static_cast<int>(both >= below * all);
        found |= (0 - overlap) & (far * kFar + near);
      });
      if (found >= kFar) return true;
      if (found == 0) continue;
      int any = 0;
      block.ForEach(box, area, floor, [&](int overlap, float both, float all) {
        any |= overlap & static_cast<int>(both / all > threshold);
      });
      if (any != 0) return true;
    }
    return false;
  }

 private:
  static constexpr size_t kBlock = 16;  // boxes that are compared before the answer is looked at

  struct Block {
    float left[kBlock], top[kBlock], right[kBlock], bottom[kBlock], area[kBlock];

    // Of no boxes: what lies between these sides has a negative width.
    Block() {
      std::fill_n(left, kBlock, std::numeric_limits<float>::max());
      std::fill_n(right, kBlock, -std::numeric_limits<float>::max());
      std::fill_n(top, kBlock, 0.0f);
      std::fill_n(bottom, kBlock, 0.0f);
      std::fill_n(area, kBlock, 0.0f);
    }

    // f(whether they overlap, intersection, union) for each box. Without branches, so that it vectorises.
    template <class F>
    void ForEach(const Box& box, float box_area, float floor, const F& f) const {
      for (size_t i = 0; i < kBlock; ++i) {
        const float width = std::min(box.right, right[i]) - std::max(box.left, left[i]);
        const float height = std::min(box.bottom, bottom[i]) - std::max(box.top, top[i]);
        const float both = width * height, all = std::max(box_area + area[i] - both, floor);
        f(static_cast<int>(width > 0) & static_cast<int>(height > 0), both, all);
      }
    }
  };

  size_t size_ = 0;
  std::vector<Block> blocks_;
};

// The axes of a grid over boxes. Positions outside belong to the outermost cells: the cell of a position never
// decreases with it, so a box covers the cells from that of its one side to that of the other, wherever it lies.
class GridAxis {
 public:
  static constexpr int kMostCells = 64;

  GridAxis() = default;
  GridAxis(float low, float high, float cell) : low_(low), cell_(std::max(cell, (high - low) / kMostCells)) {}

  int CellOf(float position) const {
    const float cell = (position - low_) / cell_;
    return cell > 0 ? static_cast<int>(std::min(cell, static_cast<float>(kMostCells - 1))) : 0;
  }

 private:
  float low_ = 0, cell_ = 1;
};

// Once they are many, the boxes are in a grid besides, with cells as large as boxes: those that overlap a box enough
// are in few cells. Each box is in every cell that it covers, unless these are many.
class ChosenBoxes {
 public:
  explicit ChosenBoxes(float threshold, float floor = 0) : threshold_(threshold), floor_(floor) {}

  // The number of boxes chosen.
  size_t size() const { return count_; }

  // Whether one of those before suppresses the box. A box without area, or with an area that is not finite, neither
  // suppresses nor is suppressed.
  bool Suppresses(const Box& box) const { return Counts(box) && Suppress(box); }

  // Adds the box unless one of those before suppresses it; returns whether it did.
  bool Add(const Box& box) {
    if (Counts(box)) {
      if (Suppress(box)) return false;
      Keep(box);
    }
    ++count_;
    return true;
  }

 private:
  static constexpr size_t kFew = 256;      // boxes that are compared one after the other
  static constexpr int kMostCovered = 16;  // cells of a box; with more, it is compared with all boxes, and all with it

  struct Cells {
    int left, right, top, bottom;
    int count() const { return (right - left + 1) * (bottom - top + 1); }
  };

  static bool Counts(const Box& box) {
    const float area = box.Area();
    return box.right > box.left && box.bottom > box.top && area > 0 && area <= std::numeric_limits<float>::max();
  }

  bool Suppress(const Box& box) const {
    if (grid_.empty()) return chosen_.Suppress(box, threshold_, floor_);
    const Cells cells = CellsOf(threshold_ >= 0.5f ? MiddleOf(box) : box);
    if (cells.count() > kMostCovered) return chosen_.Suppress(box, threshold_, floor_);
    for (int row = cells.top; row <= cells.bottom; ++row)
      for (int column = cells.left; column <= cells.right; ++column)
        if (CellAt(row, column).Suppress(box, threshold_, floor_)) return true;
    return wide_.Suppress(box, threshold_, floor_);
  }

  // Boxes with at least half of their union in common each contain the centre of the other, up to rounding.
  static Box MiddleOf(const Box& box) {
    const float width = box.right - box.left, height = box.bottom - box.top;
    const float x = box.left + width / 2, y = box.top + height / 2, dx = width / 1024, dy = height / 1024;
    return {x - dx, y - dy, x + dx, y + dy};
  }

  void Keep(const Box& box) {
    chosen_.Add(box);
    if (!grid_.empty()) {
      Place(box);
    } else if (chosen_.size() == kFew) {
      MakeGrid();
    }
  }

  void Place(const Box& box) {
    const Cells cells = CellsOf(box);
    if (cells.count() > kMostCovered) return wide_.Add(box);
    for (int row = cells.top; row <= cells.bottom; ++row)
      for (int column = cells.left; column <= cells.right; ++column) CellAt(row, column).Add(box);
  }

  // Lays the grid over the boxes so far, those of the highest scores.
  void MakeGrid() {
    Box around = chosen_.At(0);
    float width = 0, height = 0;
    for (size_t i = 0; i < kFew; ++i) {
      const Box box = chosen_.At(i);
      around = {std::min(around.left, box.left), std::min(around.top, box.top), std::max(around.right, box.right),
                std::max(around.bottom, box.bottom)};
      width += (box.right - box.left) / kFew;
      height += (box.bottom - box.top) / kFew;
    }
    columns_ = GridAxis(around.left, around.right, width);
    rows_ = GridAxis(around.top, around.bottom, height);
    grid_.resize(static_cast<size_t>(GridAxis::kMostCells * GridAxis::kMostCells));
    for (size_t i = 0; i < kFew; ++i) Place(chosen_.At(i));
  }

  Cells CellsOf(const Box& box) const {
    return {columns_.CellOf(box.left), columns_.CellOf(box.right), rows_.CellOf(box.top), rows_.CellOf(box.bottom)};
  }
  BoxColumns& CellAt(int row, int column) { return grid_[static_cast<size_t>(row * GridAxis::kMostCells + column)]; }
  const BoxColumns& CellAt(int row, int column) const {
    return grid_[static_cast<size_t>(row * GridAxis::kMostCells + column)];
  }

  float threshold_, floor_;
  size_t count_ = 0;
  BoxColumns chosen_, wide_;  // all boxes; those that cover many cells
  std::vector<BoxColumns> grid_;
  GridAxis columns_, rows_;
};

}  // namespace npu::detection
