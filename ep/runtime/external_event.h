// An event whose record and wait run as work of their streams, also inside a graph: it orders a replay against work
// outside the graph, in either direction, and the wait may be enqueued before the record.
#pragma once

#include <memory>

#include "ep/runtime/stream.h"

namespace npu {

class ExternalEvent {
 public:
  // The op name of its waits: while a replay blocks in one, the nodes behind it can be updated.
  static const char* const kWaitOp;

  void Record(Stream& stream);
  void Wait(Stream& stream);   // consumes one record: each wait needs its own
  void Reset(Stream& stream);  // discards all records

 private:
  struct State;
  static std::shared_ptr<State> NewState();

  std::shared_ptr<State> state_ = NewState();  // queued work keeps it
};

}  // namespace npu
