"""A PyOpenCL program that builds the source in a file and runs its first kernel, as ci/bench measures it.

    pyopencl_build.py SOURCE [--cached]

With --cached through PyOpenCL's own cache of programs, also on PoCL, where PyOpenCL leaves that to PoCL of itself.
"""

import sys
import time

import numpy
import pyopencl
from pyopencl.cache import create_built_program_from_source_cached


def main():
    with open(sys.argv[1], encoding="ascii") as file:
        source = file.read()
    devices = next(devices for devices in (platform.get_devices() for platform in pyopencl.get_platforms()) if devices)
    context = pyopencl.Context(devices[:1])
    queue = pyopencl.CommandQueue(context)
    start, was_cached = time.monotonic_ns(), False
    if "--cached" in sys.argv:
        program, was_cached = create_built_program_from_source_cached(context, source, b"")
    else:
        program = pyopencl.Program(context, source).build()
    built = time.monotonic_ns()
    kernel = pyopencl.Kernel(program, "kernel0")
    created = time.monotonic_ns()
    numbers = numpy.zeros(16, numpy.uint32)
    buffer = pyopencl.Buffer(context, pyopencl.mem_flags.WRITE_ONLY, numbers.nbytes)
    kernel.set_arg(0, buffer)
    pyopencl.enqueue_nd_range_kernel(queue, kernel, (16,), (16,))
    pyopencl.enqueue_copy(queue, numbers, buffer)
    now = time.monotonic_ns()
    print(
        f"build_ns={built - start} kernels_ns={created - built} first_run_ns={now - created} first_result_at_ns={now}"
        f" was_cached={int(was_cached)}"
    )


if __name__ == "__main__":
    main()
