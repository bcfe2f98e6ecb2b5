"""A PyOpenCL application: two kernels built with options, and an element-wise kernel; prints a checksum.

The device is the one that PYOPENCL_CTX names, else the first device of the first platform that has one.
"""

import os

import numpy as np
import pyopencl as cl
import pyopencl.array as cl_array
from pyopencl.elementwise import ElementwiseKernel

COUNT = 4096

SOURCE = """
__kernel void scale(__global uint *data) { data[get_global_id(0)] *= FACTOR; }
__kernel void shift(__global uint *data, uint by) { data[get_global_id(0)] += by; }
"""


def make_context():
    if "PYOPENCL_CTX" in os.environ:
        return cl.create_some_context(interactive=False)
    for platform in cl.get_platforms():
        try:
            devices = platform.get_devices()
        except cl.LogicError:
            continue
        if devices:
            return cl.Context(devices[:1])
    raise SystemExit("no device")


def main():
    context = make_context()
    queue = cl.CommandQueue(context)
    program = cl.Program(context, SOURCE).build(options=["-DFACTOR=3", "-cl-mad-enable"])
    print("kernels", sorted(kernel.function_name for kernel in program.all_kernels()))

    host = np.arange(COUNT, dtype=np.uint32)
    data = cl_array.to_device(queue, host)
    cl.Kernel(program, "scale")(queue, (COUNT,), None, data.data)
    cl.Kernel(program, "shift")(queue, (COUNT,), None, data.data, np.uint32(7))

    combine = ElementwiseKernel(
        context, "unsigned int *x, unsigned int *y, unsigned int *z", "z[i] = x[i] ^ (y[i] << 1)", "combine"
    )
    result = cl_array.empty_like(data)
    combine(data, cl_array.to_device(queue, host), result)

    found = result.get()
    wanted = (host * 3 + 7) ^ (host << 1)
    print("result", "OK" if np.array_equal(found, wanted) else "WRONG")
    print("checksum", int(found.astype(np.uint64).sum()))


if __name__ == "__main__":
    main()
