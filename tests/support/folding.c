// Builds the kernel `f(global uint *)` of the file that is named, runs it, and prints its eight numbers.
//
// FOLDING_ROUND=down builds it while numbers are rounded downward, `opening` loads the driver so, `devices` asks for its devices so,
// `context` makes context and queue so, `second` makes another context so, `first` builds another program so before; each other call
// is made as programs start. `traps` lets overflows trap while it builds, `inexact` lets
// inexact results trap in that and in its query of the log. `flags` sets the flags of what has happened. With OWN_EXP the program has an `exp` of its own, as those
// have that are linked with another mathematics. FOLDING_OPEN names a library that is opened for all others at the start. FOLDING_TITLE is the
// new LD_LIBRARY_PATH of a program that then overwrites the variables that it was started with, as setproctitle(3bsd) does, before the driver is loaded, or, with FOLDING_LATE, behind that. With FOLDING_ALONE its main thread ends before it does anything.
// With FIXED_ADDRESS it takes the addresses of the C library's functions, as Python does.
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef OWN_EXP
double exp(double x) {
    (void)x;
    return 42.0;
}
#endif

#ifdef FIXED_ADDRESS
#include <math.h>
double (*const volatile taken[])(double) = {exp, sin, cos, log};
#endif

static void round_if(const char *when, int mode) {
    const char *wanted = getenv("FOLDING_ROUND");
    if (wanted && !strcmp(wanted, when))
        fesetround(mode);
}

extern char **environ;

static void title_if(int late) {
    const char *path = getenv("FOLDING_TITLE");
    if (!path || !getenv("FOLDING_LATE") == late)
        return;
    char *begin = environ[0], *end = begin;
    int count = 0;
    for (; environ[count]; count++)
        if (environ[count] == end)
            end += strlen(end) + 1;
    char **copies = calloc(count + 1, sizeof *copies);
    for (int at = 0; at < count; at++)
        copies[at] = strdup(environ[at]);
    environ = copies;
    setenv("LD_LIBRARY_PATH", getenv("FOLDING_TITLE"), 1);
    memset(begin, 0, end - begin);
}

static int work(int argc, char **argv) {
    const char *opened = getenv("FOLDING_OPEN");
    if (opened && !dlopen(opened, RTLD_NOW | RTLD_GLOBAL))
        return 3;
    char source[1 << 16] = "";
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!file || !fread(source, 1, sizeof source - 1, file))
        return 2;
    fclose(file);
    const char *text = source;
    cl_platform_id platform;
    cl_device_id device;
    cl_int code;
    title_if(0);
    round_if("opening", FE_DOWNWARD);
    code = clGetPlatformIDs(1, &platform, NULL);
    round_if("opening", FE_TONEAREST);
    title_if(1);
    round_if("devices", FE_DOWNWARD);
    code |= clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL);
    round_if("devices", FE_TONEAREST);
    round_if("context", FE_DOWNWARD);
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &code);
    round_if("context", FE_TONEAREST);
    const char *wanted = getenv("FOLDING_ROUND");
    if (wanted && !strcmp(wanted, "first")) {
        const char *other = "__kernel void g(__global float *out) { *out = exp(0.7f); }";
        cl_program first = clCreateProgramWithSource(context, 1, &other, NULL, &code);
        fesetround(FE_DOWNWARD);
        clBuildProgram(first, 1, &device, "", NULL, NULL);
        fesetround(FE_TONEAREST);
        clReleaseProgram(first);
    }
    if (wanted && !strcmp(wanted, "second")) {
        fesetround(FE_DOWNWARD);
        clReleaseContext(clCreateContext(NULL, 1, &device, NULL, NULL, &code));
        fesetround(FE_TONEAREST);
    }
    if (wanted && !strcmp(wanted, "flags"))
        feraiseexcept(FE_ALL_EXCEPT);
    cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &code);
    round_if("down", FE_DOWNWARD);
    if (wanted && !strcmp(wanted, "traps"))
        feenableexcept(FE_OVERFLOW);
    int inexact = wanted && !strcmp(wanted, "inexact");
    if (inexact) {
        feclearexcept(FE_ALL_EXCEPT);
        feenableexcept(FE_INEXACT);
    }
    code = clBuildProgram(program, 1, &device, "", NULL, NULL);
    round_if("down", FE_TONEAREST);
    fedisableexcept(FE_OVERFLOW);
    if (code != CL_SUCCESS) {
        printf("build: %d\n", code);
        return 1;
    }
    cl_uint numbers[8] = {0};
    size_t one = 1;
    if (inexact) {
        char log[1 << 16];
        clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
        printf("traps: %x\n", fedisableexcept(FE_ALL_EXCEPT));
    }
    cl_kernel kernel = clCreateKernel(program, "f", &code);
    cl_mem buffer = clCreateBuffer(
        context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof numbers, numbers, &code);
    code = clSetKernelArg(kernel, 0, sizeof buffer, &buffer);
    code |= clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL);
    code |= clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof numbers, numbers, 0, NULL, NULL);
    printf("run: %d", code);
    for (int at = 0; at < 8; at++)
        printf(" %08x", numbers[at]);
    printf("\n");
    clReleaseMemObject(buffer);
    clReleaseKernel(kernel);
    clReleaseProgram(program);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
    return 0;
}

static char **arguments;

static void *work_alone(void *main_thread) {
    pthread_join(*(pthread_t *)main_thread, NULL);
    /* Its end is told before the kernel knows of it. */
    usleep(100000);
    exit(work(2, arguments));
}

int main(int argc, char **argv) {
    static pthread_t main_thread;
    pthread_t other;
    if (!getenv("FOLDING_ALONE"))
        return work(argc, argv);
    arguments = argv;
    main_thread = pthread_self();
    if (argc == 2 && !pthread_create(&other, NULL, work_alone, &main_thread))
        pthread_exit(NULL);
    return 4;
}
