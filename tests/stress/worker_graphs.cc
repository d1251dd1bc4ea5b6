// Captures, replays and updates.
#include <algorithm>
#include <iterator>
#include <utility>

#include "ep/runtime/error.h"
#include "tests/stress/worker.h"

namespace npu::stress {
namespace {

constexpr size_t kMostGraphs = 3;
constexpr const char* kDisturbed = "synchronize of the device";

}  // namespace

void Worker::CaptureGraph() {
  if (graphs_.size() >= kMostGraphs) DropGraph();
  OwnStream& s = SomeStream();
  OwnStream& side = *SomeStreamOn(s.device, &s);
  if (!s.failure.empty() || Chance(30)) Synchronize(s);
  auto captured = std::make_shared<Captured>();
  for (const auto& pool : pools_)
    if (pool->device == s.device && Chance(50)) captured->pool = pool;
  if (captured->pool == nullptr) captured->pool = std::make_shared<GraphPool>(GraphPool{s.device, {}, std::nullopt});
  captured->buffers.push_back(NewBuffer(s, 1));
  FillBuffer(s, captured->buffers[0], {0, 0});
  const size_t count = 1 + Upto(512);
  for (size_t i = 1 + Upto(3); i > 0; --i) {
    captured->buffers.push_back(NewBuffer(s, count));
    FillBuffer(s, captured->buffers.back(), SomePattern());
  }
  if (!s.failure.empty()) return;  // of an unsynchronised run: its buffers are unchanged

  const auto kind = static_cast<CaptureMode>(Upto(3));
  Interval& global = world_.global_captures[static_cast<size_t>(s.device)];
  if (kind == CaptureMode::kGlobal) global.Begin();
  captured->graph->CaptureBegin(*s.stream, captured->pool->id, kind);
  s.script = &captured->script;
  bool whole = true;
  try {
    CaptureNodes(*captured, s, Chance(40) ? &side : nullptr);
    s.script = nullptr;
    captured->graph->CaptureEnd(*s.stream);
  } catch (const Error& e) {
    s.script = side.script = nullptr;
    whole = false;
    if (kind != CaptureMode::kGlobal || std::string(e.what()).find(kDisturbed) == std::string::npos)
      Differ("a capture threw: ", e.what());
    if (captured->graph->captured()) Differ("a failed capture left a graph");
  }
  if (kind == CaptureMode::kGlobal) global.End();
  if (!whole) return;
  captured->pool->id = captured->graph->pool();
  if (std::find(pools_.begin(), pools_.end(), captured->pool) == pools_.end()) pools_.push_back(captured->pool);
  if (pools_.size() > kMostGraphs) pools_.erase(pools_.begin());
  captured->last = &s;
  graphs_.push_back(captured);
  if (Chance(50)) Replay(*captured, s);
}

void Worker::CaptureNodes(Captured& captured, OwnStream& s, OwnStream* side) {
  const auto some = [&] { return captured.buffers[1 + Upto(captured.buffers.size() - 1)]; };
  const auto gather = [&, cell = captured.buffers[0]] {
    const uint64_t* const index = cell->data();
    Launch(s, "stress_gather", Task([index, number = number_] {
             if (*index != 0) Fail(ErrorCode::kInvalidArgument, World::FaultText(*index, number));
           }),
           [cell, number = number_] {
             if (cell->value->base == 0) return Fault();
             return "[graph] [stress_gather] " + World::FaultText(cell->value->base, number);
           });
  };
  size_t gather_at = Upto(8);
  for (size_t i = 2 + Upto(6); i > 0; --i) {
    if (gather_at-- == 0) gather();
    switch (Upto(6)) {
      case 0:
        FillBuffer(s, some(), SomePattern());
        break;
      case 1:
        ScaleBuffer(s, some());
        break;
      case 2: {
        const BufferPtr to = some(), from = some();
        if (to != from) MixBuffers(s, to, from);
        break;
      }
      case 3: {  // memory allocated in the capture, which later nodes reuse
        const BufferPtr to = some();
        const BufferPtr own = NewBuffer(s, to->count());
        FillBuffer(s, own, SomePattern());
        MixBuffers(s, to, own);
        own->memory.reset();
        break;
      }
      case 4:
        Upload(s, some(), captured.kept);
        break;
      default:
        if (captured.group_buffers.empty()) GroupNodes(captured, s);
        break;
    }
    // Other streams run normally.
    if (Chance(20)) {
      OwnStream& other = SomeStream();
      if (&other == &s || &other == side) continue;
      if (const BufferPtr buffer = SomeBuffer(other); buffer->value) ScaleBuffer(other, buffer);
      if (Chance(20)) Synchronize(other);
    }
  }
  if (side != nullptr && captured.buffers.size() > 2) {
    captured.forked = true;
    const BufferPtr theirs = captured.buffers[1], mine = captured.buffers[2];
    Event fork(world_.backend()), join(world_.backend());
    fork.Record(*s.stream);
    side->stream->Wait(fork);
    side->script = &captured.script;
    for (size_t i = 1 + Upto(3); i > 0; --i) {
      ScaleBuffer(*side, theirs);
      ScaleBuffer(s, mine);
      if (gather_at-- == 0) gather();
    }
    join.Record(*side->stream);
    s.stream->Wait(join);
    side->script = nullptr;
    MixBuffers(s, mine, theirs);
  }
}

void Worker::GroupNodes(Captured& captured, OwnStream& s) {
  Graph::BeginGroup(*s.stream);
  captured.group_effect = captured.script.effects.size();
  for (size_t i = 1 + Upto(3); i > 0; --i) {
    const BufferPtr buffer = captured.buffers[1 + Upto(captured.buffers.size() - 1)];
    captured.group_buffers.push_back(buffer);
    FillBuffer(s, buffer, SomePattern());
  }
  captured.group = Graph::EndGroup(*s.stream);
}

// After any error in a capture, its launches never run, and stream and graph stay usable.
void Worker::SpoilCapture() {
  OwnStream& s = SomeStream();
  OwnStream& side = *SomeStreamOn(s.device, &s);
  const Mark outside = Record(side);
  const auto graph = std::make_shared<Graph>();
  const auto never = [&](Stream& stream) {
    stream.Launch("stress_never", Task([&world = world_, number = number_] {
                    world.Differ(Concat("thread ", number, ": a launch of a failed capture ran"));
                  }));
  };
  Event fork(world_.backend());
  graph->CaptureBegin(*s.stream, {}, CaptureMode::kThreadLocal);
  never(*s.stream);
  std::shared_ptr<Memory> memory;
  if (Chance(50)) memory = NewBuffer(s, 1 + Upto(512))->memory;
  const char* why = "operation not permitted when stream is capturing";
  Interval& captures = world_.global_captures[static_cast<size_t>(s.device)];
  const uint64_t since = captures.Now();
  switch (Upto(6)) {
    case 0:
      MustRefuse("Stream::Synchronize in a capture", why, [&] { s.stream->Synchronize(); });
      break;
    case 1:
      MustRefuse("Stream::Query in a capture", why, [&] { s.stream->Query(); });
      break;
    case 2:
      MustRefuse("Device::Synchronize in a capture", why, [&] { s.stream->device().Synchronize(); });
      if (captures.Since(since)) why = nullptr;  // another capture may have caused the refusal
      break;
    case 3:
      MustRefuse("a wait for an event from outside", why, [&] { s.stream->Wait(*outside.event); });
      break;
    case 4:
      fork.Record(*s.stream);
      side.stream->Wait(fork);
      never(*side.stream);
      why = "unjoined";
      break;
    default:
      graph->Reset();  // during the capture
      why = nullptr;
      break;
  }
  if (Chance(50)) memory.reset();
  if (why != nullptr && Chance(80))
    MustRefuse("the end of a spoiled capture", why, [&] { graph->CaptureEnd(*s.stream); });
  if (graph->captured()) Differ("an invalidated capture left a graph");
}

void Worker::ReplayGraph() {
  if (graphs_.empty()) return CaptureGraph();
  Captured& captured = *graphs_[Upto(graphs_.size())];
  OwnStream& s = *SomeStreamOn(captured.pool->device);
  Replay(captured, s);
  if (Chance(30)) ReadBack(s, *captured.buffers[1]);
}

void Worker::Replay(Captured& captured, OwnStream& s) {
  for (const BufferPtr& buffer : captured.buffers) MoveTo(*buffer, s);
  captured.last = &s;
  GraphPool& pool = *captured.pool;
  if (pool.last) Wait(s, *pool.last);
  const BufferPtr& cell = captured.buffers[0];
  const bool fails = Chance(25);
  if (fails || cell->value->base != 0) FillBuffer(s, cell, {fails ? world_.NewFaultNumber() : 0, 0});
  Note(Concat("replay on stream ", s.stream->id(), s.failure.empty() ? "" : " behind ", s.failure, ", index ",
              cell->value->base));
  JoinDebts(s);
  ++s.queued;
  captured.graph->Replay(*s.stream);
  if (s.failure.empty()) {
    for (const Effect& effect : captured.script.effects) {
      s.failure = effect();
      if (s.failure.empty()) continue;
      // A branch may or may not have run before the failure of the other.
      if (captured.forked)
        for (size_t i = 1; i < captured.buffers.size(); ++i) captured.buffers[i]->value.reset();
      break;
    }
  }
  pool.last = Record(s);
}

void Worker::UpdateGraph() {
  if (graphs_.empty()) return;
  Captured& captured = *graphs_[Upto(graphs_.size())];
  if (captured.group_buffers.empty()) return;
  if (captured.pool->last) {  // a replay in flight may be before or after the group
    const Mark& last = *captured.pool->last;
    MustTell("Event::Synchronize of a replay",
             last.failure.empty() ? std::vector<Fault>{} : std::vector<Fault>{last.failure},
             [&] { last.event->Synchronize(); });
  }
  OwnStream& s = *SomeStreamOn(captured.pool->device);
  Script script;
  Graph::BeginUpdate(*s.stream, captured.group);
  s.script = &script;
  for (const BufferPtr& buffer : captured.group_buffers) FillBuffer(s, buffer, SomePattern());
  s.script = nullptr;
  Graph::EndUpdate(*s.stream);
  std::move(script.effects.begin(), script.effects.end(),
            captured.script.effects.begin() + static_cast<std::ptrdiff_t>(captured.group_effect));
}

// Possibly with replays in flight.
void Worker::DropGraph() {
  if (graphs_.empty()) return;
  const auto chosen = graphs_.begin() + static_cast<std::ptrdiff_t>(Upto(graphs_.size()));
  const auto captured = *chosen;
  graphs_.erase(chosen);
  std::move(captured->kept.begin(), captured->kept.end(), std::back_inserter(captured->last->kept));
  if (Chance(50)) captured->buffers.clear();
  switch (Upto(3)) {
    case 0:
      captured->graph->Reset();
      break;
    case 1:
      Launch(SomeStream(), "stress_drop_graph",
             Task([keep = std::make_shared<std::shared_ptr<Graph>>(std::move(captured->graph))] { keep->reset(); }),
             [] { return Fault(); });
      break;
    default:
      break;
  }
}

}  // namespace npu::stress
