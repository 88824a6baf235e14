/* Runs a model that Ingot compiled, from C. For a model with one float32 input and one float32 output of rank 2.
 *
 *   python -m ingot_runtime extract m.ingot model
 *   cc -Imodel main.c -o main -ldl && ./main model/model.so model/weights.bin 2 4
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ingot.h"

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: %s model.so weights.bin ROWS COLUMNS\n", argv[0]), 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    __typeof__(&ingot_describe) describe = dlsym(library, "ingot_describe");
    __typeof__(&ingot_open) open_model = dlsym(library, "ingot_open");
    __typeof__(&ingot_sizes) sizes_of = dlsym(library, "ingot_sizes");
    __typeof__(&ingot_run) run = dlsym(library, "ingot_run");
    __typeof__(&ingot_close) close_model = dlsym(library, "ingot_close");

    /* Mapped memory begins on a page, so the weights are aligned as they must be, and are read when they are needed. */
    size_t size = describe()->weights_size;
    void *weights = mmap(NULL, size ? size : 1, PROT_READ, MAP_PRIVATE, open(argv[2], O_RDONLY), 0);
    ingot_model *model;
    if (weights == MAP_FAILED || open_model(weights, 0, &model)) return fprintf(stderr, "cannot open the model\n"), 1;

    int64_t in_shape[2] = {atoll(argv[3]), atoll(argv[4])}, out_shape[2];
    float *x = malloc(sizeof(float) * in_shape[0] * in_shape[1]);
    for (int64_t i = 0; i < in_shape[0] * in_shape[1]; i++) x[i] = (float)i;
    ingot_tensor input = {.data = x, .dtype = INGOT_FLOAT32, .rank = 2, .shape = in_shape};
    char message[1024] = "";
    if (sizes_of(model, &input, out_shape, message, sizeof message)) return fprintf(stderr, "%s\n", message), 1;
    float *y = malloc(sizeof(float) * out_shape[0] * out_shape[1]);
    ingot_tensor output = {.data = y, .dtype = INGOT_FLOAT32, .rank = 2, .shape = out_shape};
    if (run(model, &input, &output, message, sizeof message)) return fprintf(stderr, "%s\n", message), 1;
    for (int64_t i = 0; i < out_shape[0] * out_shape[1]; i++) printf("%g%c", y[i], (i + 1) % out_shape[1] ? ' ' : '\n');
    close_model(model);
    return 0;
}
