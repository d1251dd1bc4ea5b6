#include "ep/kernels/recurrent/layer.h"

#include <limits>
#include <string>

#include "ep/kernels/op_check.h"

namespace npu::recurrent {
namespace {

Direction ReadDirection(const char* op, const std::string& name) {
  if (name == "forward") return Direction::kForward;
  if (name == "reverse") return Direction::kReverse;
  NPU_OP_CHECK(op, name == "bidirectional", "expected a direction of forward, reverse or bidirectional, got ", name);
  return Direction::kBidirectional;
}

// An input of the type of X and this shape, or absent.
TensorView Optional(const char* op, const char* name, const TensorView& given, DType dtype, const Shape& wanted) {
  NPU_OP_CHECK(op, !given || (given.dtype == dtype && given.shape == wanted), "expected ", name, " of ", NameOf(dtype),
               " ", wanted, ", got ", NameOf(given.dtype), " ", given.shape);
  return given;
}

}  // namespace

Settings::Settings(const char* op, const Attributes& attributes)
    : direction(ReadDirection(op, attributes.String("direction"))),
      batch_first(attributes.Int("layout", 0) == 1),
      clip(attributes.Float("clip", std::numeric_limits<double>::infinity())) {
  const int64_t layout = attributes.Int("layout", 0);
  NPU_OP_CHECK(op, layout == 0 || layout == 1, "expected a layout of 0 or 1, got ", layout);
  NPU_OP_CHECK(op, clip > 0, "expected a clip above 0, got ", clip);
  if (attributes.Has("hidden_size")) hidden_size = attributes.Int("hidden_size");
}

Layer::Layer(const Kind& kind, const Settings& settings, OpContext& ctx, const TensorView& w_given,
             const TensorView& r_given)
    : directions(settings.directions()), x(ctx.Input(0)), w(w_given), r(r_given) {
  const char* op = kind.op;
  NPU_OP_CHECK(op, x && x.shape.rank() == 3 && w.shape.rank() == 3 && r.shape.rank() == 3,
               "expected X, W and R of rank 3, got shapes ", x.shape, ", ", w.shape, " and ", r.shape);
  NPU_OP_CHECK(op, w.dtype == x.dtype && r.dtype == x.dtype, "expected W and R of X's type ", NameOf(x.dtype), ", got ",
               NameOf(w.dtype), " and ", NameOf(r.dtype));
  steps = x.shape[settings.batch_first ? 1 : 0];
  batch = x.shape[settings.batch_first ? 0 : 1];
  inputs = x.shape[2];
  hidden = r.shape[2];
  NPU_OP_CHECK(op, hidden > 0 && settings.hidden_size.value_or(hidden) == hidden, "expected R of ",
               settings.hidden_size.value_or(1), " or more columns, as hidden_size says, got shape ", r.shape);
  const Shape w_wanted{directions, kind.gates * hidden, inputs}, r_wanted{directions, kind.gates * hidden, hidden};
  NPU_OP_CHECK(op, w.shape == w_wanted, "expected W of shape ", w_wanted, ", got ", w.shape);
  NPU_OP_CHECK(op, r.shape == r_wanted, "expected R of shape ", r_wanted, ", got ", r.shape);
  bias = Optional(op, "B", ctx.Input(3), x.dtype, {directions, 2 * kind.gates * hidden});
  lengths = Optional(op, "sequence_lens", ctx.Input(4), DType::kInt32, {batch});
  state = settings.batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
  initial_hidden = Optional(op, "initial_h", ctx.Input(5), x.dtype, state);
  if (kind.memory) initial_memory = Optional(op, "initial_c", ctx.Input(6), x.dtype, state);
  if (kind.peepholes) peepholes = Optional(op, "P", ctx.Input(7), x.dtype, {directions, 3 * hidden});
  if (settings.batch_first) {
    output = {batch, steps, directions, hidden};
    x_step = inputs, x_row = steps * inputs;
    y_direction = hidden, y_step = directions * hidden, y_row = steps * y_step;
    state_direction = hidden, state_row = directions * hidden;
  } else {
    output = {steps, directions, batch, hidden};
    x_row = inputs, x_step = batch * inputs;
    y_row = hidden, y_direction = batch * hidden, y_step = directions * y_direction;
    state_row = hidden, state_direction = batch * hidden;
  }
}

}  // namespace npu::recurrent
