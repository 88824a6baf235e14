/* Runs one compiled library for another process, which need not be of the same architecture: it reads requests from
   standard input and writes answers to standard output, as emulator.py describes them. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif

typedef struct {
    void *data;
    int32_t dtype, rank;
    const int64_t *shape, *strides;
    int32_t device, reserved;
} tensor;

typedef struct {
    int32_t abi, inputs, outputs, symbols;
    const char *isa, *weights;
    uint64_t weights_size;
} info;

enum { MESSAGE = 2048 };

static void fail(const char *what)
{
    fprintf(stderr, "driver: %s\n", what);
    exit(3);
}

static void get(void *to, size_t size)
{
    if (size && fread(to, size, 1, stdin) != 1) exit(0);
}

static void put(const void *from, size_t size)
{
    if (size && fwrite(from, size, 1, stdout) != 1) fail("cannot write");
}

static int64_t number(void)
{
    int64_t value;
    get(&value, sizeof value);
    return value;
}

static void put_number(int64_t value) { put(&value, sizeof value); }

static void *memory(int64_t size)
{
    void *const made = aligned_alloc(64, (size_t)(size + 127) / 64 * 64);
    if (!made) fail("no memory");
    return made;
}

static void text(char *to, int64_t room)
{
    const int64_t size = number();
    if (size >= room) fail("a name that is too long");
    get(to, (size_t)size);
    to[size] = 0;
}

static void put_text(const char *from)
{
    const int64_t size = (int64_t)strlen(from);
    put_number(size);
    put(from, (size_t)size);
}

static void *function(void *library, const char *prefix, const char *name)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    void *const found = dlsym(library, whole);
    if (!found) fail(whole);
    return found;
}

/* `count` tensors: dtype, rank, sizes, and bytes of data, which follow where `filled`. */
static tensor *tensors(int64_t count, int64_t *bytes, int filled)
{
    tensor *const made = calloc((size_t)count + 1, sizeof *made);
    for (int64_t i = 0; i < count; ++i) {
        made[i].dtype = (int32_t)number();
        made[i].rank = (int32_t)number();
        int64_t *const shape = calloc((size_t)made[i].rank + 1, sizeof *shape);
        for (int d = 0; d < made[i].rank; ++d) shape[d] = number();
        made[i].shape = shape;
        bytes[i] = number();
        made[i].data = memory(bytes[i]);
        if (filled) get(made[i].data, (size_t)bytes[i]);
    }
    return made;
}

static void release(tensor *made, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        free((void *)made[i].shape);
        free(made[i].data);
    }
    free(made);
}

int main(int argc, char **argv)
{
    if (argc != 2) fail("one argument: the library");
    void *const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    static char message[MESSAGE];
    for (int request; (request = getchar()) != EOF;) {
        char prefix[128];
        text(prefix, sizeof prefix);
        if (request == 'd') {
            const info *(*const describe)(void) = function(library, prefix, "ingot_describe");
            const info *const about = describe();
#ifdef __linux__
            put_number((int64_t)getauxval(AT_HWCAP));
            put_number((int64_t)getauxval(AT_HWCAP2));
#else
            put_number(0);
            put_number(0);
#endif
            put_number(about->abi);
            put_number(about->inputs);
            put_number(about->outputs);
            put_number((int64_t)about->weights_size);
            put_text(about->isa);
            put_text(about->weights);
        } else if (request == 'o') {
            int (*const open)(const void *, int, void **) = function(library, prefix, "ingot_open");
            const int threads = (int)number();
            const int64_t size = number();
            void *const weights = memory(size), *model = NULL; /* which the model reads as long as it is open */
            get(weights, (size_t)size);
            put_number(open(weights, threads, &model));
            put_number((int64_t)(uintptr_t)model);
        } else if (request == 's') {
            int (*const sizes_of)(void *, const tensor *, int64_t *, char *, size_t) =
                function(library, prefix, "ingot_sizes");
            void *const model = (void *)(uintptr_t)number();
            const int64_t count = number(), wanted = number();
            int64_t bytes[count + 1], *const sizes = calloc((size_t)wanted + 1, sizeof *sizes);
            tensor *const inputs = tensors(count, bytes, 1);
            message[0] = 0;
            put_number(sizes_of(model, inputs, sizes, message, MESSAGE));
            put_text(message);
            put(sizes, (size_t)wanted * sizeof *sizes);
            release(inputs, count);
            free(sizes);
        } else if (request == 'r') {
            int (*const run)(void *, const tensor *, const tensor *, char *, size_t) =
                function(library, prefix, "ingot_run");
            void *const model = (void *)(uintptr_t)number();
            const int64_t given = number(), made = number();
            int64_t in_bytes[given + 1], out_bytes[made + 1];
            tensor *const inputs = tensors(given, in_bytes, 1), *const outputs = tensors(made, out_bytes, 0);
            message[0] = 0;
            put_number(run(model, inputs, outputs, message, MESSAGE));
            put_text(message);
            for (int64_t i = 0; i < given; ++i) put(inputs[i].data, (size_t)in_bytes[i]);
            for (int64_t i = 0; i < made; ++i) put(outputs[i].data, (size_t)out_bytes[i]);
            release(inputs, given);
            release(outputs, made);
        } else if (request == 'e') {
            void (*const seed)(void *, uint64_t) = function(library, prefix, "ingot_seed");
            void *const model = (void *)(uintptr_t)number();
            seed(model, (uint64_t)number());
        } else if (request == 'c') {
            void (*const close)(void *) = function(library, prefix, "ingot_close");
            close((void *)(uintptr_t)number());
        } else {
            fail("a request that it does not know");
        }
        fflush(stdout);
    }
    return 0;
}
