// dl_iterate_phdr without the dynamic linker's lock around the callback, to be preloaded under ThreadSanitizer.
//
// A report looks for the loaded objects by dl_iterate_phdr while it holds ThreadSanitizer's own lock, and any instrumented instruction
// may wait for that one: a report and a callback of another thread would wait for each other for ever. Sound only in a program that
// unloads nothing meanwhile. ThreadSanitizer's dl_iterate_phdr calls the next one, which is this.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

enum { MOST = 256 };

struct copies {
    size_t number;
    struct dl_phdr_info objects[MOST];
};

static int copy(struct dl_phdr_info *object, size_t size, void *data) {
    struct copies *copies = data;
    if (copies->number == MOST || size < sizeof *object) abort();
    copies->objects[copies->number++] = *object;
    return 0;
}

int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data) {
    // By atomics: what locks is ThreadSanitizer's here.
    static __typeof__(&dl_iterate_phdr) cached;
    __typeof__(&dl_iterate_phdr) next = __atomic_load_n(&cached, __ATOMIC_ACQUIRE);
    if (!next) {
        next = (__typeof__(next))dlsym(RTLD_NEXT, "dl_iterate_phdr");
        __atomic_store_n(&cached, next, __ATOMIC_RELEASE);
    }
    struct copies copies = {.number = 0};
    next(copy, &copies);
    for (size_t i = 0; i < copies.number; i++) {
        int result = callback(&copies.objects[i], sizeof copies.objects[i], data);
        if (result) return result;
    }
    return 0;
}
