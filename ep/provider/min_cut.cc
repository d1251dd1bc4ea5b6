#include "ep/provider/min_cut.h"

#include <algorithm>
#include <deque>

namespace npu::provider {

size_t MinCut::AddVertex() {
  leaving_.emplace_back();
  return leaving_.size() - 1;
}

void MinCut::AddEdge(size_t from, size_t to, int64_t cost) {
  leaving_[from].push_back(edges_.size());
  edges_.push_back({to, cost});
  leaving_[to].push_back(edges_.size());
  edges_.push_back({from, 0});
}

std::vector<size_t> MinCut::Reach(size_t source, size_t sink) const {
  std::vector<size_t> through(leaving_.size(), kNone);
  through[source] = kStart;
  std::deque<size_t> next{source};
  while (!next.empty() && through[sink] == kNone) {
    const size_t vertex = next.front();
    next.pop_front();
    for (const size_t edge : leaving_[vertex]) {
      const size_t to = edges_[edge].to;
      if (edges_[edge].left == 0 || through[to] != kNone) continue;
      through[to] = edge;
      next.push_back(to);
    }
  }
  return through;
}

bool MinCut::Augment(size_t source, size_t sink) {
  const std::vector<size_t> through = Reach(source, sink);
  if (through[sink] == kNone) return false;
  const auto along = [&](auto visit) {
    for (size_t vertex = sink; vertex != source; vertex = edges_[through[vertex] ^ 1].to) visit(through[vertex]);
  };
  int64_t flow = kNever;
  along([&](size_t edge) { flow = std::min(flow, edges_[edge].left); });
  along([&](size_t edge) {
    edges_[edge].left -= flow;
    edges_[edge ^ 1].left += flow;
  });
  return true;
}

std::vector<bool> MinCut::SourceSide(size_t source, size_t sink) {
  while (Augment(source, sink)) {
  }
  const std::vector<size_t> through = Reach(source, sink);
  std::vector<bool> side;
  for (const size_t edge : through) side.push_back(edge != kNone);
  return side;
}

}  // namespace npu::provider
