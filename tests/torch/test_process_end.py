"""The end of a process whose last work was a backward pass."""

from __future__ import annotations

import subprocess

# Autograd threads sleep after they have told that a pass is over, still holding its graph.
LATE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static int tell(const char* function, pthread_cond_t* condition) {
  int (*next)(pthread_cond_t*) = dlvsym(RTLD_NEXT, function, "GLIBC_2.3.2");  // x86-64's second
  if (!next) next = dlsym(RTLD_NEXT, function);
  int result = next(condition);
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (strncmp(name, "pt_autograd_", 12) == 0) usleep(50000);
  return result;
}
int pthread_cond_signal(pthread_cond_t* c) { return tell("pthread_cond_signal", c); }
int pthread_cond_broadcast(pthread_cond_t* c) { return tell("pthread_cond_broadcast", c); }
"""

SCRIPT = """
import sys
import time
import onnxruntime_npu
import torch

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2

class Last:
    def __del__(self):  # while the interpreter ends, others get its lock
        time.sleep(0.5)

last = Last()
x = torch.ones(4, device="npu", requires_grad=True)
Twice.apply(x).sum().backward()
sys.setswitchinterval(1000)
Twice.apply(x).sum().backward()
end = time.monotonic() + 0.5
while time.monotonic() < end:  # with the lock, for which the thread waits
    pass
print(x.grad.tolist())
"""


def test_a_thread_that_still_holds_a_graph_does_not_kill_the_process(run_python, tmp_path) -> None:
    source, library = tmp_path / "late.c", tmp_path / "late.so"
    source.write_text(LATE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    code, output = run_python(SCRIPT, LD_PRELOAD=str(library))
    assert (code, output) == (0, "[4.0, 4.0, 4.0, 4.0]\n")
