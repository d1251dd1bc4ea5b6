// LSTM (ai.onnx 7 to 22).
#include "ep/kernels/recurrent/lstm_cell.h"

namespace npu::recurrent {

template <class T>
using OnnxCell = LstmCell<T>;

static OpDef LstmDef() {
  OpDef def = RecurrentDef<OnnxCell>({OptionalInput("initial_c", kAllFloats), OptionalInput("P", kAllFloats)},
                                     {IntAttribute("input_forget", 0)});
  def.outputs.push_back(OptionalOutput("Y_c", kAllFloats));
  return def;
}

NPU_ONNX_KERNEL(LstmDef());

}  // namespace npu::recurrent
