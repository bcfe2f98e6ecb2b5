// Leaves the callbacks of builds, compiles and links by an exception (`throw`), by pthread_exit (`exit`), canceled (`cancel`), or as usual
// (`return`), and says what OpenCL does then.
//
//     unwinding HOW CALL...
//
// `build`, `compile`, `link`: one such call, and what its program is good for afterwards; `over`: a build over a live kernel; `linked`: a
// build of a link's result; `nested`: a build in the callback of a build, both left at once; `many`: many builds.
#define CL_TARGET_OPENCL_VERSION 120
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <pthread.h>
#include <string>

struct Thrown {
    int number;
};

// Tells that frames of the application are unwound in order.
struct Cleaned {
    ~Cleaned() { printf("cleaned\n"); }
};

static std::string how;
static cl_context context;
static cl_device_id device;
static cl_command_queue queue;
// What the last callback was told.
static cl_program told;

static void leave() {
    if (how == "throw")
        throw Thrown{42};
    if (how == "exit")
        pthread_exit(nullptr);
    if (how == "cancel") {
        pthread_cancel(pthread_self());
        pthread_testcancel();
    }
}

static cl_build_status status(cl_program program) {
    cl_build_status status = 1234;
    clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_STATUS, sizeof status, &status, nullptr);
    return status;
}

static void CL_CALLBACK notify(cl_program program, void *data) {
    told = program;
    printf("told %s\n", data ? "with data" : "without data");
    leave();
}

// Runs a call; where that ends its thread, on a thread of its own.
static void attempt(const char *label, std::function<int()> call) {
    struct Attempt {
        const char *label;
        std::function<int()> *call;
        static void *run(void *data) {
            auto attempt = static_cast<Attempt *>(data);
            Cleaned cleaned;
            printf("%s: returned %d\n", attempt->label, (*attempt->call)());
            return data;
        }
    } attempt = {label, &call};
    told = nullptr;
    if (how == "exit" || how == "cancel") {
        pthread_t thread;
        void *result;
        pthread_create(&thread, nullptr, Attempt::run, &attempt);
        pthread_join(thread, &result);
        bool canceled = result == PTHREAD_CANCELED;
        printf("%s: thread %s\n", label, canceled ? "canceled" : result ? "returned" : "ended");
        return;
    }
    try {
        Attempt::run(&attempt);
    } catch (Thrown &thrown) {
        printf("%s: caught %d\n", label, thrown.number);
    }
}

static cl_program made(int number) {
    char source[256];
    snprintf(source, sizeof source,
        "#ifndef V\n#define V 0\n#endif\n"
        "__kernel void f(__global uint *out) { out[get_global_id(0)] = %d * 100 + V; }\n",
        number);
    const char *text = source;
    return clCreateProgramWithSource(context, 1, &text, nullptr, nullptr);
}

static int build(cl_program program, const char *options, bool with_callback) {
    if (!with_callback)
        return clBuildProgram(program, 1, &device, options, nullptr, nullptr);
    return clBuildProgram(program, 1, &device, options, notify, &told);
}

static int compiled(cl_program program, bool with_callback) {
    auto callback = with_callback ? notify : nullptr;
    return clCompileProgram(program, 1, &device, "-DV=5", 0, nullptr, nullptr, callback, nullptr);
}

// Runs nothing: rusticl builds no program again whose kernel it has just run.
static void look(const char *label, cl_program program) {
    cl_int code;
    cl_kernel kernel = clCreateKernel(program, "f", &code);
    printf("%s: status %d kernel %d\n", label, status(program), code);
    if (kernel)
        clReleaseKernel(kernel);
}

static void run(const char *label, cl_program program) {
    cl_int code;
    cl_kernel kernel = clCreateKernel(program, "f", &code);
    printf("%s: status %d kernel %d", label, status(program), code);
    if (kernel) {
        cl_uint numbers[2] = {0};
        size_t size = 2;
        cl_mem buffer = clCreateBuffer(
            context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof numbers, numbers, &code);
        code = clSetKernelArg(kernel, 0, sizeof buffer, &buffer);
        code |= clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, &size, nullptr, 0, nullptr, nullptr);
        code |= clEnqueueReadBuffer(
            queue, buffer, CL_TRUE, 0, sizeof numbers, numbers, 0, nullptr, nullptr);
        printf(" run %d %u %u", code, numbers[0], numbers[1]);
        clReleaseMemObject(buffer);
        clReleaseKernel(kernel);
    }
    printf("\n");
}

// A program that nothing has happened to.
static void fresh(int number, const char *options) {
    cl_program program = made(number);
    printf("fresh: build %d\n", build(program, options, false));
    run("fresh", program);
    clReleaseProgram(program);
}

static void build_left() {
    cl_program program = made(1);
    attempt("build", [=] { return build(program, "-DV=1", true); });
    printf("told of %s\n", told == program ? "it" : "another");
    look("build", program);
    fresh(1, "-DV=1");
    printf("again: build %d\n", build(program, "-DV=2", false));
    run("again", program);
    fresh(1, "-DV=2");
    clReleaseProgram(program);
}

static void compile_left() {
    cl_program program = made(2);
    attempt("compile", [=] { return compiled(program, true); });
    printf("told of %s, status %d\n", told == program ? "it" : "another", status(program));
    cl_int code;
    cl_program linked =
        clLinkProgram(context, 1, &device, "", 1, &program, nullptr, nullptr, &code);
    printf("link: %d\n", code);
    if (linked) {
        run("link", linked);
        clReleaseProgram(linked);
    }
    printf("again: compile %d\n", compiled(program, false));
    clReleaseProgram(program);
}

static void link_left(bool build_it) {
    cl_program program = made(build_it ? 4 : 3);
    printf("compile: %d\n", compiled(program, false));
    cl_program linked = nullptr;
    cl_int code = 1234;
    if (build_it) {
        linked = clLinkProgram(context, 1, &device, "", 1, &program, nullptr, nullptr, &code);
        printf("link: %d\n", code);
        if (linked)
            attempt("linked", [=] { return build(linked, "", true); });
    } else {
        attempt("link", [&] {
            linked = clLinkProgram(context, 1, &device, "", 1, &program, notify, nullptr, &code);
            return code;
        });
        linked = told;
    }
    if (linked) {
        // Bare PoCL 3.1 crashes in kernels of a link's result that was built.
        if (build_it)
            printf("linked: status %d\n", status(linked));
        else
            run("link", linked);
        clReleaseProgram(linked);
    }
    linked = clLinkProgram(context, 1, &device, "", 1, &program, nullptr, nullptr, &code);
    printf("again: link %d\n", code);
    if (linked) {
        run("again", linked);
        clReleaseProgram(linked);
    }
    clReleaseProgram(program);
}

static void over_left() {
    cl_program program = made(5);
    printf("first: build %d\n", build(program, "-DV=1", false));
    cl_kernel kernel = clCreateKernel(program, "f", nullptr);
    attempt("over", [=] { return build(program, "-DV=2", true); });
    printf("told of %s\n", told == program ? "it" : told ? "another" : "nothing");
    fresh(5, "-DV=2");
    clReleaseKernel(kernel);
    look("over", program);
    printf("again: build %d\n", build(program, "-DV=3", false));
    run("again", program);
    fresh(5, "-DV=3");
    clReleaseProgram(program);
}

static void CL_CALLBACK notify_nested(cl_program program, void *data) {
    Cleaned cleaned;
    printf("told of %s\n", program == data ? "it" : "another");
    cl_program inner = made(7);
    clRetainProgram(inner);
    printf("nested: returned %d\n", build(inner, "-DV=1", true));
    clReleaseProgram(inner);
}

static void nested_left() {
    cl_program program = made(6);
    attempt("nested", [=] {
        return clBuildProgram(program, 1, &device, "-DV=1", notify_nested, program);
    });
    run("nested", program);
    run("nested", told);
    fresh(6, "-DV=1");
    fresh(7, "-DV=1");
    clReleaseProgram(program);
}

static void many_left() {
    for (int number = 0; number < 8; number++) {
        cl_program program = made(number % 4 + 10);
        attempt("many", [=] { return build(program, "-DV=1", true); });
        run("many", program);
        clReleaseProgram(program);
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    how = argc > 1 ? argv[1] : "";
    cl_platform_id platform;
    cl_int code = clGetPlatformIDs(1, &platform, nullptr);
    code |= clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, nullptr);
    context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, nullptr);
    queue = clCreateCommandQueue(context, device, 0, nullptr);
    printf("codes %d\n", code);
    for (int at = 2; at < argc; at++) {
        std::string call = argv[at];
        printf("[%s]\n", argv[at]);
        if (call == "build")
            build_left();
        else if (call == "compile")
            compile_left();
        else if (call == "link" || call == "linked")
            link_left(call == "linked");
        else if (call == "over")
            over_left();
        else if (call == "nested")
            nested_left();
        else if (call == "many")
            many_left();
        else
            return 2;
    }
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
    printf("end\n");
    return 0;
}
