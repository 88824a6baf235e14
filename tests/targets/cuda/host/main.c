/* A model of a counter, called through ingot.h: model.so weights.bin image. */
#include "ingot.h"
#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *read_file(const char *path, size_t *size)
{
    FILE *const file = fopen(path, "rb");
    assert(file);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *const data = aligned_alloc(64, (*size + 127) / 64 * 64);
    assert(fread(data, 1, *size, file) == *size);
    fclose(file);
    return data;
}

int main(int count, char **arguments)
{
    assert(count == 4);
    void *const library = dlopen(arguments[1], RTLD_NOW);
    assert(library);
    __typeof__(&ingot_describe) describe = dlsym(library, "ingot_describe");
    __typeof__(&ingot_open) open_host = dlsym(library, "ingot_open");
    __typeof__(&ingot_open_device) open_device = dlsym(library, "ingot_open_device");
    __typeof__(&ingot_sizes) sizes_of = dlsym(library, "ingot_sizes");
    __typeof__(&ingot_run) run = dlsym(library, "ingot_run");
    __typeof__(&ingot_enqueue) enqueue = dlsym(library, "ingot_enqueue");
    __typeof__(&ingot_close) close_model = dlsym(library, "ingot_close");
    ingot_model *model = 0;
    char message[1024] = "";
    size_t weights_size, image_size;
    void *const weights = read_file(arguments[2], &weights_size), *const image = read_file(arguments[3], &image_size);
    assert(describe()->abi == INGOT_ABI && describe()->weights_size == weights_size);
    assert(open_host(weights, 1, &model) == INGOT_DEVICE && !model);
    const ingot_image images[] = {{"sm_60", "", 0}, {"sm_90", image, image_size}};
    assert(open_device(weights, images, 1, 0, &model, message, sizeof message) == INGOT_DEVICE);
    assert(strstr(message, "sm_60"));
    if (open_device(weights, images, 2, 0, &model, message, sizeof message)) return puts(message), 1;
    memset(weights, 0, weights_size); /* they were copied */
    memset(image, 0, image_size);
    float x[4][5], out[4][5];
    int64_t sizes[2];
    const int64_t shape[] = {4, 5};
    for (int i = 0; i < 20; ++i) (&x[0][0])[i] = (float)i;
    const ingot_tensor input = {.data = x, .dtype = INGOT_FLOAT32, .rank = 2, .shape = shape};
    const ingot_tensor output = {.data = out, .dtype = INGOT_FLOAT32, .rank = 2, .shape = shape};
    assert(!sizes_of(model, &input, sizes, message, sizeof message) && sizes[0] == 4 && sizes[1] == 5);
    for (int turn = 1; turn < 4; ++turn) {
        const int status = turn == 2 ? enqueue(model, &input, &output, 0, message, sizeof message)
                                     : run(model, &input, &output, message, sizeof message);
        if (status) return puts(message), 1;
        for (int i = 0; i < 20; ++i) assert((&out[0][0])[i] == (float)(i * turn)); /* the state counts calls */
    }
    const int64_t wrong[] = {4, 6};
    const ingot_tensor other = {.data = x, .dtype = INGOT_FLOAT32, .rank = 2, .shape = wrong};
    assert(run(model, &other, &output, message, sizeof message) == INGOT_INVALID && strstr(message, "dim 1"));
    const ingot_tensor elsewhere = {.data = x, .dtype = INGOT_FLOAT32, .rank = 2, .shape = shape, .device = 3};
    assert(run(model, &elsewhere, &output, message, sizeof message) == INGOT_INVALID && strstr(message, "device 2"));
    close_model(model);
    close_model(0);
    puts("good");
    return 0;
}
