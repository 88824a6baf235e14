/* A model written by hand against ingot.h, which has a bit of everything that a compiled one may have.
 *
 *   inputs   x float32[s0, 4]   total float32[4], written to   rows int64[s1]   scale float64[]   twice float32[2*s0]
 *            count int64[], the size s2
 *   outputs  y float32[s0, 4] = x * w * scale + b      picked float32[s1, 4] = y[rows]
 *            low bfloat16[s0] = y[:, 0], cut off        calls int64[] = how often this model has run
 *            ramp float32[s2] = 0, 1, ... plus the seed
 */
#include "ingot.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ingot_model {
    const float *w, *b;
    pthread_mutex_t lock;
    int64_t calls;
    uint64_t seed;
};

static const ingot_info info = {INGOT_ABI, 6, 5, 3, ISA, WEIGHTS_SHA256, WEIGHTS_SIZE};

const ingot_info *ingot_describe(void) { return &info; }

int ingot_open(const void *weights, int threads, ingot_model **model) {
    if ((uintptr_t)weights % 64 || threads < 0) return INGOT_INVALID;
    ingot_model *made = calloc(1, sizeof *made);
    if (!made) return INGOT_MEMORY;
    made->w = (const float *)((const char *)weights + OFFSET_W);
    made->b = (const float *)((const char *)weights + OFFSET_B);
    pthread_mutex_init(&made->lock, NULL);
    *model = made;
    return INGOT_OK;
}

int ingot_sizes(ingot_model *model, const ingot_tensor *in, int64_t *sizes, char *message, size_t message_size) {
    (void)model;
    int64_t count = *(const int64_t *)in[5].data;
    if (in[0].shape[0] == 13) {
        snprintf(message, message_size, "13 rows are not what this was compiled for");
        return INGOT_INVALID;
    }
    int64_t all[] = {in[0].shape[0], 4, in[2].shape[0], 4, in[0].shape[0], count};
    memcpy(sizes, all, sizeof all);
    return INGOT_OK;
}

int ingot_run(ingot_model *model, const ingot_tensor *in, const ingot_tensor *out, char *message, size_t message_size) {
    const float *x = in[0].data;
    float *total = in[1].data, *y = out[0].data, *picked = out[1].data, *ramp = out[4].data;
    const int64_t *rows = in[2].data;
    uint16_t *low = out[2].data;
    double scale = *(const double *)in[3].data;
    int64_t n = in[0].shape[0];
    for (int i = 0; i < 6; i++)
        if (in[i].strides) return INGOT_INVALID;
    if (scale == 0) return INGOT_ZERO_DIVISION; /* without a message */
    if (scale < -1000) return INGOT_MEMORY;
    if (scale > 1000) return 77;
    for (int64_t i = 0; i < n * 4; i++)
        if (isnan(x[i])) {
            snprintf(message, message_size, "x must not have a NaN (model.py:12)");
            return INGOT_ASSERTION;
        }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < 4; j++) {
            y[i * 4 + j] = x[i * 4 + j] * model->w[j] * (float)scale + model->b[j];
            total[j] += x[i * 4 + j];
        }
        uint32_t bits;
        memcpy(&bits, &y[i * 4], sizeof bits);
        low[i] = (uint16_t)(bits >> 16);
    }
    for (int64_t i = 0; i < in[2].shape[0]; i++) {
        if (rows[i] < 0 || rows[i] >= n) {
            snprintf(message, message_size, "the index %lld is out of range for %lld rows", (long long)rows[i], (long long)n);
            return INGOT_INDEX;
        }
        memcpy(picked + i * 4, y + rows[i] * 4, 4 * sizeof(float));
    }
    pthread_mutex_lock(&model->lock);
    *(int64_t *)out[3].data = ++model->calls;
    for (int64_t i = 0; i < out[4].shape[0]; i++) ramp[i] = (float)((uint64_t)i + model->seed);
    pthread_mutex_unlock(&model->lock);
    return INGOT_OK;
}

void ingot_seed(ingot_model *model, uint64_t seed) {
    pthread_mutex_lock(&model->lock);
    model->seed = seed;
    pthread_mutex_unlock(&model->lock);
}

void ingot_close(ingot_model *model) {
    pthread_mutex_destroy(&model->lock);
    free(model);
}
