// All that a kernel may include of the runtime.
#pragma once

#include "ep/runtime/dtype.h"        // IWYU pragma: export
#include "ep/runtime/error.h"        // IWYU pragma: export
#include "ep/runtime/isa.h"          // IWYU pragma: export
#include "ep/runtime/kernel.h"       // IWYU pragma: export
#include "ep/runtime/op_registry.h"  // IWYU pragma: export
#include "ep/runtime/tensor.h"       // IWYU pragma: export
#include "ep/runtime/thread_pool.h"  // IWYU pragma: export
