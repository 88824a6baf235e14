/* Runs a compiled model once, from the start of a process that holds nothing else, and prints that process' peak of
 * memory in bytes.
 *
 *   start model.so weights.bin THREADS in:8:x.bin:1x3x224x224 ... out:8:y.bin:4 ...
 *
 * dtypes are numbered as in ingot.h. An input is a file of its bytes and its shape, an output a file to be written and
 * its rank; each in the order of the model.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ingot.h"

enum { RANKS = 8, TENSORS = 64 };
static const int64_t BYTES[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 2, 4, 8};

static int fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void *mapped(const char *path) {
    struct stat about;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &about)) fail(path);
    void *data = mmap(NULL, about.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) fail(path);
    return data;
}

int main(int argc, char **argv) {
    static ingot_tensor inputs[TENSORS], outputs[TENSORS];
    static int64_t shapes[TENSORS][RANKS], sizes[TENSORS * RANKS];
    const char *written[TENSORS];
    int taken = 0, given = 0;
    for (int i = 4; i < argc; i++) {
        int input = !strcmp(strtok(argv[i], ":"), "in"), dtype = atoi(strtok(NULL, ":")), rank = 0;
        char *path = strtok(NULL, ":");
        if (input) {
            for (char *size = strtok(NULL, "x"); size; size = strtok(NULL, "x")) shapes[taken][rank++] = atoll(size);
            inputs[taken] = (ingot_tensor){.data = mapped(path), .dtype = dtype, .rank = rank, .shape = shapes[taken]};
            taken++;
        } else {
            written[given] = path;
            outputs[given++] = (ingot_tensor){.dtype = dtype, .rank = atoi(strtok(NULL, ":"))};
        }
    }
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) fail(dlerror());
    __typeof__(&ingot_open) open_model = dlsym(library, "ingot_open");
    __typeof__(&ingot_sizes) sizes_of = dlsym(library, "ingot_sizes");
    __typeof__(&ingot_run) run = dlsym(library, "ingot_run");

    ingot_model *model;
    char message[1024] = "";
    if (open_model(mapped(argv[2]), atoi(argv[3]), &model)) fail("cannot open the model");
    if (sizes_of(model, inputs, sizes, message, sizeof message)) fail(message);
    int64_t *size = sizes, bytes[TENSORS];
    for (int i = 0; i < given; i++) {
        outputs[i].shape = size;
        bytes[i] = BYTES[outputs[i].dtype];
        for (int axis = 0; axis < outputs[i].rank; axis++) bytes[i] *= *size++;
        outputs[i].data = malloc(bytes[i] ? bytes[i] : 1);
    }
    if (run(model, inputs, outputs, message, sizeof message)) fail(message);
    for (int i = 0; i < given; i++) {
        FILE *file = fopen(written[i], "wb");
        if (!file || fwrite(outputs[i].data, 1, bytes[i], file) != (size_t)bytes[i] || fclose(file)) fail(written[i]);
    }
    char line[256];
    for (FILE *status = fopen("/proc/self/status", "r"); fgets(line, sizeof line, status);)
        if (!strncmp(line, "VmHWM:", 6)) printf("%lld\n", atoll(line + 6) * 1024);
    return 0;
}
