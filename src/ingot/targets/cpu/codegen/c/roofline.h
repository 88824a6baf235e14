/* How fast this machine is at best: multiply-adds on registers, and reading memory that no cache holds.

   ingot_peak(threads, bytes, data) is floating-point operations a second in float32; with `bytes` above 0, bytes a
   second, each thread reading so many of its own, or, with `data`, its part of them. 0 where threads or memory cannot be
   had. Stands behind vectors.h. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef float ig_vector __attribute__((vector_size(IG_BYTES)));
enum { SUMS = 12, ROUNDS = 1 << 22, LANES = IG_BYTES / 4 };

typedef struct {
    ig_vector sum;
    char *own; /* memory of the worker's own, to be filled */
    const char *data;
    int64_t bytes;
    _Atomic int *go; /* 0: not yet; below 0: never */
    double seconds;
} ig_worker;

static double ig_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static ig_vector ig_multiply_add(void)
{
    IG_CONTRACTED
    ig_vector sum[SUMS], x = {0.999f}, y = {1e-9f};
    for (int i = 0; i < SUMS; ++i) sum[i] = (ig_vector){(float)i};
    for (int64_t n = 0; n < ROUNDS; ++n)
        for (int i = 0; i < SUMS; ++i) sum[i] = IG_FMA_f32(sum[i], x, y);
    for (int i = 1; i < SUMS; ++i) sum[0] += sum[i];
    return sum[0];
}

static ig_vector ig_read(const char *data, int64_t bytes)
{
    ig_vector sum[8] = {{0}};
    for (int64_t at = 0; at + (int64_t)sizeof sum <= bytes; at += (int64_t)sizeof sum)
        for (int i = 0; i < 8; ++i) {
            ig_vector value;
            memcpy(&value, data + at + i * IG_BYTES, IG_BYTES);
            sum[i] += value;
        }
    for (int i = 1; i < 8; ++i) sum[0] += sum[i];
    return sum[0];
}

static void *ig_work(void *argument)
{
    ig_worker *const w = argument;
    if (w->own) memset(w->own, 0, (size_t)w->bytes);
    int go;
    while (!(go = *w->go)) {}
    if (go < 0) return NULL;
    const double begin = ig_now();
    w->sum = w->data ? ig_read(w->data, w->bytes) : ig_multiply_add();
    w->seconds = ig_now() - begin;
    return NULL;
}

double ingot_peak(int threads, int64_t bytes, const char *data)
{
    ig_worker *const workers = aligned_alloc(64, (sizeof(ig_worker) * (size_t)threads + 63) / 64 * 64);
    pthread_t *const ids = malloc(sizeof(pthread_t) * (size_t)threads);
    _Atomic int go = 0;
    int started = 0, fine = workers && ids;
    double longest = 0;
    for (int i = 0; fine && i < threads; ++i) {
        workers[i] = (ig_worker){.go = &go, .bytes = bytes};
        workers[i].own = bytes && !data ? malloc((size_t)bytes) : NULL;
        workers[i].data = data ? data + i * bytes : workers[i].own;
        fine = !bytes || workers[i].data;
        if (fine && pthread_create(&ids[i], NULL, ig_work, &workers[i]) == 0) ++started;
        else free(workers[i].own), fine = 0;
    }
    go = fine ? 1 : -1;
    for (int i = 0; i < started; ++i) {
        pthread_join(ids[i], NULL);
        if (workers[i].seconds > longest) longest = workers[i].seconds;
        free(workers[i].own);
    }
    free(workers);
    free(ids);
    const double work = bytes ? (double)bytes : 2.0 * ROUNDS * SUMS * LANES;
    return fine && longest > 0 ? threads * work / longest : 0;
}
