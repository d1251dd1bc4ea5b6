// A check of an operator's arguments: as NPU_CHECK, with a message that begins with the operator's name.
#pragma once

#include "ep/runtime/error.h"

#define NPU_OP_CHECK(op, condition, ...) NPU_CHECK(condition, "[", op, "] ", __VA_ARGS__)
