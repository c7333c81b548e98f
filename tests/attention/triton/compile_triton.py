"""Compiles every kernel of the Triton backend for compute capability 9.0, without a GPU, and prints what each takes.

`python tests/attention/compile_triton.py 64 bfloat16 causal`: one line a kernel: name, shared memory in bytes,
registers a thread, bytes of stack a thread (spilled registers). Launches are turned into compilations; no kernel runs.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch


class Card:
    """What Triton asks of a driver in order to compile."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def compile_and_print(jit_function, *arguments, launch, seen):
    import triton

    options = {name: value for name, value in launch.items() if name != "warmup"}
    kernel = jit_function(*arguments, warmup=True, **options)
    if id(kernel) in seen:
        return kernel
    seen[id(kernel)] = kernel
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(kernel.asm["cubin"])
        binary.flush()
        usage = subprocess.run([tool, "--dump-resource-usage", binary.name], capture_output=True, text=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    print(kernel.metadata.name, kernel.metadata.shared, registers, stack, flush=True)
    return kernel


def main(size, dtype, form):
    from triton.runtime import driver, jit

    driver.set_active(Card())
    from nala_platform.attention.signature import Options
    from nala_platform.attention.triton import form as triton

    run, seen = jit.JITFunction.run, {}
    jit.JITFunction.run = lambda self, *arguments, **launch: compile_and_print(
        run.__get__(self), *arguments, launch=launch, seen=seen
    )
    triton._check_device = lambda query: None
    rope = (torch.zeros(256, size), torch.zeros(256, size))
    mask = torch.zeros(2, 256, dtype=torch.bool)
    query, key, value = (torch.zeros(2, 4, 256, size, dtype=dtype, requires_grad=True) for _ in range(3))
    options = Options((1.5, 4.5), "tanh", 3.0, "split", rope, form == "causal", mask, 1e-6)
    triton.triton_form(query, key, value, options).sum().backward()


if __name__ == "__main__":
    main(int(sys.argv[1]), getattr(torch, sys.argv[2]), sys.argv[3])
