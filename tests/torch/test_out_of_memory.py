"""After out of memory at any allocation of a training step, the step can be repeated."""

import subprocess
import sys

import pytest

ALLOCATOR = """
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/types.h>
// Blocks are freed by the thread of their stream, too.
atomic_int allocations = 0, fails_at = -1, held = 0;
void* my_alloc(size_t size, int device, void* stream) {
  if (allocations++ == fails_at) return 0;
  void* block;
  if (posix_memalign(&block, 64, size ? size : 1) != 0) return 0;
  ++held;
  return block;
}
void my_free(void* block, size_t size, int device, void* stream) {
  --held;
  free(block);
}
"""

SCRIPT = """
import ctypes, gc, sys
import onnxruntime_npu, torch
import torch.nn.functional as F

library = ctypes.CDLL(sys.argv[1])
allocations = ctypes.c_int.in_dll(library, "allocations")
fails_at = ctypes.c_int.in_dll(library, "fails_at")
held = ctypes.c_int.in_dll(library, "held")
plug = torch.npu.NPUPluggableAllocator(sys.argv[1], "my_alloc", "my_free")
torch.npu.change_current_allocator(plug)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(7, 8), torch.nn.GELU(), torch.nn.Dropout(0.5),
                            torch.nn.LayerNorm(8), torch.nn.Linear(8, 7)).npu()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=False)
tokens = torch.arange(12).remainder(7).npu()

def step():
    torch.npu.manual_seed(1)
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(tokens), tokens)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()

def blocks_between_steps():
    optimizer.zero_grad(set_to_none=True)
    torch.npu.synchronize()
    return held.value

step()  # creates the optimizer's state
state = [t for p in model.parameters() for t in (p.data, *optimizer.state[p].values())]
before = [t.clone() for t in state]

def restore():
    for t, b in zip(state, before):
        t.copy_(b)

restore()
begin = allocations.value
loss = step()
count = allocations.value - begin
expected = [t.clone() for t in state]
assert count > 50, count
gc.collect()
raised, blocks = 0, blocks_between_steps()
for i in range(count):
    restore()
    fails_at.value = allocations.value + i
    try:
        step()
    except torch.OutOfMemoryError as error:
        raised += 1
        assert "out of memory" in str(error), error
    fails_at.value = -1
    if blocks_between_steps() != blocks:
        gc.collect()  # blocks held by reference cycles
        assert blocks_between_steps() == blocks, i
    restore()
    assert step() == loss, i
    assert all(torch.equal(t, e) for t, e in zip(state, expected)), i
assert raised == count, (raised, count)
print("raised", raised)
"""


@pytest.fixture
def allocator(tmp_path):
    """A library whose allocator fails on request."""
    source, library = tmp_path / "alloc.c", tmp_path / "alloc.so"
    source.write_text(ALLOCATOR)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def test_out_of_memory_at_every_allocation_of_a_step(allocator):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(allocator)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("raised ")
