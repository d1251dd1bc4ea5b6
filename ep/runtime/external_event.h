// An event whose record and wait are work of their streams, also inside a graph: so it orders a replay against work
// that is not in the graph, in either direction, and the wait may be enqueued before the record.
#pragma once

#include <memory>

#include "ep/runtime/stream.h"

namespace npu {

class ExternalEvent {
 public:
  // The name under which its waits are launched: a replay that is held up there lets the nodes behind it be updated.
  static const char* const kWaitOp;

  void Record(Stream& stream);
  void Wait(Stream& stream);   // and take one record away, so that the next wait needs the next one
  void Reset(Stream& stream);  // take every record away

 private:
  struct State;
  static std::shared_ptr<State> NewState();

  std::shared_ptr<State> state_ = NewState();  // work in flight keeps it
};

}  // namespace npu
