/* Adds two vectors on the first device of the first platform that has one, as any C program would. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1024 };

static const char *SOURCE =
    "__kernel void vadd(__global const uint *a, __global const uint *b, __global uint *c) {\n"
    "    size_t i = get_global_id(0);\n"
    "    c[i] = a[i] + b[i];\n"
    "}\n";

static void check(cl_int code, const char *what) {
    if (code != CL_SUCCESS) {
        printf("%s failed: %d\n", what, code);
        exit(1);
    }
}

static cl_device_id find_device(void) {
    cl_platform_id platforms[16];
    cl_uint count = 0;
    check(clGetPlatformIDs(16, platforms, &count), "clGetPlatformIDs");
    for (cl_uint i = 0; i < count && i < 16; i++) {
        cl_device_id device;
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, NULL) == CL_SUCCESS) {
            return device;
        }
    }
    printf("no device\n");
    exit(1);
}

int main(void) {
    static cl_uint a[COUNT], b[COUNT], c[COUNT];
    for (cl_uint i = 0; i < COUNT; i++) {
        a[i] = i * 3;
        b[i] = i * i;
    }
    cl_device_id device = find_device();
    cl_int code;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    check(code, "clCreateContext");
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &code);
    check(code, "clCreateCommandQueue");
    cl_program program = clCreateProgramWithSource(context, 1, &SOURCE, NULL, &code);
    check(code, "clCreateProgramWithSource");
    check(clBuildProgram(program, 1, &device, "", NULL, NULL), "clBuildProgram");
    cl_kernel kernel = clCreateKernel(program, "vadd", &code);
    check(code, "clCreateKernel");

    cl_mem buffers[3];
    void *host[3] = {a, b, NULL};
    for (cl_uint i = 0; i < 3; i++) {
        cl_mem_flags flags = host[i] ? CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR : CL_MEM_WRITE_ONLY;
        buffers[i] = clCreateBuffer(context, flags, sizeof a, host[i], &code);
        check(code, "clCreateBuffer");
        check(clSetKernelArg(kernel, i, sizeof(cl_mem), &buffers[i]), "clSetKernelArg");
    }
    size_t size = COUNT;
    check(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL), "clEnqueueNDRangeKernel");
    check(clEnqueueReadBuffer(queue, buffers[2], CL_TRUE, 0, sizeof c, c, 0, NULL, NULL), "clEnqueueReadBuffer");

    cl_uint sum = 0;
    int wrong = 0;
    for (cl_uint i = 0; i < COUNT; i++) {
        sum = sum * 31 + c[i];
        wrong += c[i] != a[i] + b[i];
    }
    printf("%s\nchecksum %08x\n", wrong ? "sum WRONG" : "sum OK", sum);

    for (cl_uint i = 0; i < 3; i++) {
        clReleaseMemObject(buffers[i]);
    }
    clReleaseKernel(kernel);
    clReleaseProgram(program);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
    return wrong != 0;
}
