
/* The lines above were generated for one entry; the following ones are always the same. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALL_DEVICES 0xffffffffu
#define DEVICE_NAME 0x102bu
#define PROGRAM_BINARY_SIZES 0x1165u
#define PROGRAM_BINARIES 0x1166u
#define PROGRAM_BUILD_LOG 0x1183u
#define MAX_COUNT 64

typedef void *handle;
typedef unsigned long long bits;

static handle library;

static void fail(const char *what, int code)
{
    fprintf(stderr, "rebuild: %s", what);
    if (code != 0)
        fprintf(stderr, " (%d)", code);
    fprintf(stderr, "\n");
    exit(1);
}

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "rebuild: libOpenCL has no %s\n", name);
        exit(1);
    }
    return found;
}

static char *load(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t length = 0, room = 0, got;
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    do {
        if (room - length < 65536)
            text = realloc(text, room = 2 * room + 131072);
        if (text == NULL)
            fail("out of memory", 0);
        got = fread(text + length, 1, 65536, file);
        length += got;
    } while (got > 0);
    fclose(file);
    text[length] = 0;
    *size = length;
    return text;
}

/* The devices of one platform that have the recorded names, each once. */
static unsigned find(handle *platforms, unsigned count, int any, handle *found, handle *platform)
{
    int (*get_devices)(handle, bits, unsigned, handle *, unsigned *) = function("clGetDeviceIDs");
    int (*get_info)(handle, unsigned, size_t, void *, size_t *) = function("clGetDeviceInfo");
    unsigned each, device, wanted, here;
    for (each = 0; each < count; each++) {
        handle devices[MAX_COUNT];
        char taken[MAX_COUNT] = { 0 };
        here = 0;
        if (get_devices(platforms[each], ALL_DEVICES, MAX_COUNT, devices, &here) != 0)
            continue;
        if (here > MAX_COUNT)
            here = MAX_COUNT;
        *platform = platforms[each];
        if (any && here > 0) {
            found[0] = devices[0];
            return 1;
        }
        for (wanted = 0; device_names[wanted] != NULL && wanted < MAX_COUNT; wanted++) {
            for (device = 0; device < here; device++) {
                char name[4096] = "";
                get_info(devices[device], DEVICE_NAME, sizeof name - 1, name, NULL);
                if (!taken[device] && strcmp(name, device_names[wanted]) == 0)
                    break;
                if (wanted == 0)
                    fprintf(stderr, "rebuild: not on %s\n", name);
            }
            if (device == here)
                break;
            taken[device] = 1;
            found[wanted] = devices[device];
        }
        if (wanted > 0 && device_names[wanted] == NULL)
            return wanted;
    }
    return 0;
}

static handle from_source(handle context, const char *text, size_t size)
{
    handle (*create)(handle, unsigned, const char **, const size_t *, int *) = function("clCreateProgramWithSource");
    int code = 0;
    handle program = create(context, 1, &text, &size, &code);
    if (program == NULL)
        fail("the driver does not accept the source", code);
    return program;
}

static handle from_il(handle context, const char *text, size_t size)
{
    handle (*create)(handle, const void *, size_t, int *) = function("clCreateProgramWithIL");
    unsigned each;
    int code = 0;
    handle program = create(context, text, size, &code);
    if (program == NULL)
        fail("the driver does not accept the intermediate language", code);
    for (each = 0; constants[each].value != NULL; each++) {
        int (*set)(handle, unsigned, size_t, const void *) = function("clSetProgramSpecializationConstant");
        code = set(program, constants[each].id, constants[each].size, constants[each].value);
        if (code != 0)
            fail("the driver does not accept a specialization constant", code);
    }
    return program;
}

int main(int count, char **arguments)
{
    int any = count > 1 && strcmp(arguments[1], "--any") == 0;
    const char *named = getenv("OPENCL_LIBRARY");
    int (*get_platforms)(unsigned, handle *, unsigned *);
    handle (*create_context)(const void *, unsigned, const handle *, void *, void *, int *);
    int (*build_info)(handle, handle, unsigned, size_t, void *, size_t *);
    int (*program_info)(handle, unsigned, size_t, void *, size_t *);
    handle platforms[MAX_COUNT], platform = NULL, devices[MAX_COUNT], chosen[MAX_COUNT], context, program;
    handle header_programs[MAX_COUNT * 4];
    const char *header_names[MAX_COUNT * 4];
    unsigned platform_count = 0, device_count, each, header_count = 0, chosen_count = 0;
    size_t size, sizes[MAX_COUNT] = { 0 };
    unsigned char *binaries[MAX_COUNT] = { 0 };
    char *text, start[4096];
    int code = 0;

    if (count > 1 && !any) {
        fprintf(stderr, "usage: rebuild.sh [--any]\n  --any: use the first device, not the one that it was compiled for\n");
        return 2;
    }
    library = dlopen(named != NULL ? named : "libOpenCL.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "rebuild: %s; install an OpenCL loader (Debian: ocl-icd-libopencl1)\n", dlerror());
        return 1;
    }
    get_platforms = function("clGetPlatformIDs");
    create_context = function("clCreateContext");
    build_info = function("clGetProgramBuildInfo");
    program_info = function("clGetProgramInfo");
    code = get_platforms(MAX_COUNT, platforms, &platform_count);
    if (code != 0 || platform_count == 0)
        fail("there is no OpenCL platform", code);
    device_count = find(platforms, platform_count < MAX_COUNT ? platform_count : MAX_COUNT, any, devices, &platform);
    if (device_count == 0)
        fail("the device that it was compiled for does not exist; use another with --any", 0);
    context = create_context(NULL, device_count, devices, NULL, NULL, &code);
    if (context == NULL)
        fail("the driver creates no context", code);

    text = load(program_file, &size);
    program = is_il ? from_il(context, text, size) : from_source(context, text, size);
    for (; headers[header_count].name != NULL && header_count < MAX_COUNT * 4; header_count++) {
        text = load(headers[header_count].file, &size);
        header_names[header_count] = headers[header_count].name;
        header_programs[header_count] = from_source(context, text, size);
    }
    for (each = 0; listed_count > 0 && !any && each < (unsigned)listed_count; each++) {
        if (each >= MAX_COUNT || listed[each] >= device_count)
            fail("the recipe lists a device that does not exist", 0);
        chosen[chosen_count++] = devices[listed[each]];
    }

    if (getcwd(start, sizeof start) == NULL || chdir(working_directory) != 0)
        fail("the directory of the headers cannot be entered", 0);
    if (compiles) {
        int (*compile)(handle, unsigned, const handle *, const char *, unsigned, const handle *, const char **, void *, void *)
            = function("clCompileProgram");
        code = compile(program, chosen_count, chosen_count ? chosen : NULL, options, header_count,
            header_count ? header_programs : NULL, header_count ? header_names : NULL, NULL, NULL);
    } else {
        int (*build)(handle, unsigned, const handle *, const char *, void *, void *) = function("clBuildProgram");
        code = build(program, chosen_count, chosen_count ? chosen : NULL, options, NULL, NULL);
    }
    if (chdir(start) != 0)
        fail("the directory was removed", 0);

    for (each = 0; each < device_count; each++) {
        if (build_info(program, devices[each], PROGRAM_BUILD_LOG, 0, NULL, &size) != 0 || size < 2)
            continue;
        text = calloc(1, size + 1);
        if (text != NULL && build_info(program, devices[each], PROGRAM_BUILD_LOG, size, text, NULL) == 0)
            puts(text);
    }
    if (code != 0)
        fail("the driver does not build it", code);
    if (program_info(program, PROGRAM_BINARY_SIZES, sizeof sizes, sizes, &size) != 0)
        fail("built, but the driver gives no binary", 0);
    for (each = 0; each < size / sizeof sizes[0]; each++)
        if (sizes[each] > 0 && (binaries[each] = malloc(sizes[each])) == NULL)
            fail("out of memory", 0);
    code = program_info(program, PROGRAM_BINARIES, size, binaries, NULL);
    if (code != 0)
        fail("built, but the driver gives no binary", code);
    for (each = 0; each < size / sizeof sizes[0]; each++) {
        char name[64];
        FILE *file;
        if (binaries[each] == NULL)
            continue;
        snprintf(name, sizeof name, "rebuilt-%u.bin", each);
        file = fopen(name, "wb");
        if (file == NULL || fwrite(binaries[each], 1, sizes[each], file) != sizes[each] || fclose(file) != 0) {
            perror(name);
            return 1;
        }
        printf("%s: %lu bytes\n", name, (unsigned long)sizes[each]);
    }
    return 0;
}
