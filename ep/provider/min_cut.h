// The cheapest way to divide the vertices of a graph between two of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace npu::provider {

class MinCut {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

  size_t AddVertex();
  // What it costs if `from` is on the source's side and `to` on the other; kNever: that must not be.
  void AddEdge(size_t from, size_t to, int64_t cost);
  // Per vertex, whether it is on the source's side, which has as few vertices as the lowest cost allows. To be called
  // once.
  std::vector<bool> SourceSide(size_t source, size_t sink);

 private:
  struct Edge {
    size_t to;
    int64_t left;  // that may still flow
  };
  // Pushes flow along one shortest path; whether there was one.
  bool Augment(size_t source, size_t sink);
  // Per vertex the edge through which flow can reach it, none of those out of reach.
  std::vector<size_t> Reach(size_t source, size_t sink) const;

  static constexpr size_t kNone = static_cast<size_t>(-1), kStart = static_cast<size_t>(-2);
  std::vector<Edge> edges_;  // each before its reverse
  std::vector<std::vector<size_t>> leaving_;
};

}  // namespace npu::provider
