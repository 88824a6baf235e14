/* What the tests of thread_pool.h compile: a library for ctypes, or a program that runs the scenario named on its command
   line and exits with 0 when all went right. Thread creation and allocation can be made to fail. */
#include <pthread.h>
#include <stdlib.h>

static _Atomic int threads_allowed = 1 << 30; /* how many more threads may start */
static int memory_allowed = 1;

static int limited_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *argument) {
    if (threads_allowed-- <= 0) return 11; /* EAGAIN */
    return pthread_create(thread, how, body, argument);
}
static void *limited_alloc(size_t alignment, size_t size) {
    return memory_allowed ? aligned_alloc(alignment, size) : NULL;
}
#define pthread_create limited_create
#define aligned_alloc limited_alloc
#include "thread_pool.h"
#undef pthread_create
#undef aligned_alloc

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

ig_pool *pool_open(int threads) { return ig_pool_open(threads); }
void pool_close(ig_pool *pool) { ig_pool_close(pool); }
int pool_threads(const ig_pool *pool) { return ig_pool_threads(pool); }
void allow_threads(int count) { threads_allowed = count; }
void allow_memory(int allowed) { memory_allowed = allowed; }

/* ---- every chunk exactly once ---- */

typedef struct {
    int64_t total, grain;
    int threads;
    _Atomic int fault, calls;
    _Atomic int inside[IG_THREADS_MAX];
    int *seen; /* by chunk; plain, so that the thread sanitizer sees a chunk that two threads run */
    pthread_t *by;
    int64_t work;
} cover;

static void cover_chunk(void *context, int64_t begin, int64_t end, int worker) {
    cover *c = context;
    int64_t left = c->total - begin;
    if (begin < 0 || begin % c->grain || end != begin + (left < c->grain ? left : c->grain)) c->fault = 1;
    if (worker < 0 || worker >= c->threads) {
        c->fault = 2;
        return;
    }
    if (atomic_exchange(&c->inside[worker], 1)) c->fault = 3;
    c->seen[begin / c->grain]++;
    c->by[begin / c->grain] = pthread_self();
    for (volatile int64_t i = 0; i < c->work; i++) {}
    c->calls++;
    atomic_store(&c->inside[worker], 0);
}

/* 0, or what was wrong. `used` (may be NULL): how many different threads ran chunks. */
int check_cover(ig_pool *pool, int64_t total, int64_t grain, int64_t work, int *used) {
    int64_t chunks = total > 0 ? (total - 1) / grain + 1 : 0;
    cover *c = calloc(1, sizeof *c);
    c->total = total, c->grain = grain, c->threads = ig_pool_threads(pool), c->work = work;
    c->seen = calloc((size_t)chunks + 1, sizeof *c->seen);
    c->by = calloc((size_t)chunks + 1, sizeof *c->by);
    ig_parallel(pool, cover_chunk, c, total, grain);
    int fault = c->fault;
    if (c->calls != chunks) fault = 4;
    for (int64_t i = 0; i < chunks; i++)
        if (c->seen[i] != 1) fault = 5;
    if (c->seen[chunks]) fault = 6;
    if (used) {
        *used = 0;
        for (int64_t i = 0; i < chunks; i++) {
            int fresh = 1;
            for (int64_t j = 0; j < i && fresh; j++) fresh = !pthread_equal(c->by[i], c->by[j]);
            *used += fresh;
        }
    }
    free(c->seen), free(c->by), free(c);
    return fault;
}

typedef struct {
    _Atomic int here, alone;
    int wanted;
} meeting;

static void meet(void *context, int64_t begin, int64_t end, int worker) {
    (void)begin, (void)end, (void)worker;
    meeting *m = context;
    m->here++;
    struct timespec nap = {0, 1000000};
    for (int i = 0; i < 10000 && m->here < m->wanted && !m->alone; i++) nanosleep(&nap, NULL);
    if (m->here < m->wanted) m->alone = 1;
}

/* 1 when `wanted` threads were inside tasks of one call at the same time, each with a chunk. */
int meets(ig_pool *pool, int wanted) {
    meeting m = {0, 0, wanted};
    ig_parallel(pool, meet, &m, wanted, 1);
    return !m.alone;
}

/* ---- results ---- */

typedef struct {
    const float *values;
    float *sums;
    int64_t grain;
} summing;

static void sum_chunk(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    summing *s = context;
    float sum = 0;
    for (int64_t i = begin; i < end; i++) sum += s->values[i] * 0.5f;
    s->sums[begin / s->grain] = sum;
}

void sum_chunks(ig_pool *pool, const float *values, float *sums, int64_t total, int64_t grain) {
    summing s = {values, sums, grain};
    ig_parallel(pool, sum_chunk, &s, total, grain);
}

/* The same with subnormals flushed to zero in the calling thread alone, set after the workers have started. */
void sum_chunks_flushing(ig_pool *pool, const float *values, float *sums, int64_t total, int64_t grain) {
    uint64_t before, flushing;
    IG_GET_MODES(before);
#if defined(__x86_64__)
    flushing = before | 0x8040;
#else
    flushing = before | 1u << 24;
#endif
    IG_SET_MODES(flushing);
    sum_chunks(pool, values, sums, total, grain);
    IG_SET_MODES(before);
}

/* ---- nested ---- */

typedef struct {
    ig_pool *pool;
    int alone; /* no other thread calls: the outer call has the pool, so what its tasks call runs in one thread */
    _Atomic int fault;
} nesting;

static void nest(void *context, int64_t begin, int64_t end, int worker) {
    (void)begin, (void)end, (void)worker;
    nesting *n = context;
    int used, fault = check_cover(n->pool, 103, 10, 50, &used);
    if (n->alone && used != 1) fault = 7;
    if (fault) n->fault = fault;
}

int check_nested(ig_pool *pool, int alone) {
    nesting n = {pool, alone, 0};
    for (int round = 0; round < 50; round++) ig_parallel(pool, nest, &n, 8, 1);
    return n.fault;
}

/* ---- fork while another thread is in the middle of a job; `early`: while workers may still be starting ---- */

typedef struct {
    ig_pool *pool;
    _Atomic int inside, go;
} holding;

static void hold(void *context, int64_t begin, int64_t end, int worker) {
    (void)begin, (void)end, (void)worker;
    holding *h = context;
    h->inside++;
    struct timespec nap = {0, 1000000};
    while (!h->go) nanosleep(&nap, NULL);
}

static void *hold_pool(void *context) {
    holding *h = context;
    ig_parallel(h->pool, hold, h, 2, 1);
    return NULL;
}

static int child_works(ig_pool *pool) {
    int threads = ig_pool_threads(pool);
    if (!meets(pool, threads)) return 20;
    for (int i = 0; i < 100; i++) {
        int fault = check_cover(pool, 1000, 7, 10, NULL);
        if (fault) return fault;
    }
    return check_nested(pool, 1);
}

static int status_of(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return 30;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 31;
}

int check_fork(ig_pool *pool, int early) {
    holding h = {pool, 0, 0};
    if (!early && !meets(pool, ig_pool_threads(pool))) return 33;
    pthread_t caller;
    struct timespec nap = {0, 1000000};
    if (pthread_create(&caller, NULL, hold_pool, &h)) return 32;
    while (h.inside < 2) nanosleep(&nap, NULL); /* both chunks are held: by the caller and by a worker */
    pid_t child = fork();
    if (!child) {
        int fault = child_works(pool);
        if (!fault) {
            pid_t grandchild = fork();
            if (!grandchild) {
                fault = child_works(pool);
                ig_pool_close(pool);
                _exit(fault);
            }
            fault = status_of(grandchild);
            if (!fault) fault = child_works(pool);
        }
        ig_pool_close(pool);
        _exit(fault);
    }
    int fault = status_of(child);
    pid_t idle = fork(); /* closes what it never used */
    if (!idle) {
        ig_pool_close(pool);
        _exit(0);
    }
    if (!fault) fault = status_of(idle);
    h.go = 1;
    pthread_join(caller, NULL);
    return fault ? fault : child_works(pool);
}

/* ---- scenarios ---- */

typedef struct {
    ig_pool *pool;
    int rounds, fault;
} calling;

static void *call_often(void *context) {
    calling *c = context;
    for (int i = 0; i < c->rounds && !c->fault; i++)
        c->fault = check_cover(c->pool, 1 + i % 97, 1 + i % 5, i % 20, NULL);
    return NULL;
}

static int callers(ig_pool **pools, int pool_count, int rounds) {
    enum { CALLERS = 4 };
    pthread_t threads[CALLERS];
    calling calls[CALLERS];
    int fault = 0;
    for (int i = 0; i < CALLERS; i++) {
        calls[i] = (calling){pools[i % pool_count], rounds, 0};
        if (pthread_create(&threads[i], NULL, call_often, &calls[i])) abort();
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        if (calls[i].fault) fault = calls[i].fault;
    }
    return fault;
}

static void add_one(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    for (int64_t i = begin; i < end; i++) ((int *)context)[i]++;
}

/* Plain memory that one job writes and the next reads and writes: any missing order is a race. */
int check_tiny(ig_pool *pool, int rounds, int naps) {
    int values[64] = {0};
    struct timespec nap = {0, 100000}; /* long enough for workers to fall asleep */
    for (int i = 0; i < rounds; i++) {
        ig_parallel(pool, add_one, values, 64, 4);
        if (naps && i % naps == 0) nanosleep(&nap, NULL);
        for (int j = 0; j < 64; j++)
            if (values[j] != i + 1) return 8;
    }
    return 0;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

typedef struct {
    _Atomic int here;
    int64_t lateness;
} being_late;

static void be_late(void *context, int64_t begin, int64_t end, int worker) {
    (void)begin, (void)end;
    being_late *l = context;
    l->here++;
    for (int i = 0; i < 1000 && l->here < 2; i++) sched_yield();
    for (int64_t until = now() + l->lateness; worker && now() < until;) {}
}

/* The worker leaves just when the caller, done with its own chunk, stops spinning and falls asleep. */
static int check_late(ig_pool *pool, int rounds) {
    for (int i = 0; i < rounds; i++) {
        being_late l = {0, IG_SPIN_NS - 2000 + i % 200 * 50};
        ig_parallel(pool, be_late, &l, 2, 1);
        if (l.here != 2) return 9;
    }
    return 0;
}

static int run_scenario(const char *name, int threads, int rounds) {
    if (!strcmp(name, "open-close")) { /* idle, before and after use, awake and asleep */
        for (int i = 0, fault; i < rounds; i++) {
            ig_pool *pool = ig_pool_open(threads);
            if (!pool || ig_pool_threads(pool) != threads) return 40;
            if (i % 3 && (fault = check_tiny(pool, i % 7, 0))) return fault;
            struct timespec nap = {0, 200000};
            if (i % 3 == 2) nanosleep(&nap, NULL);
            ig_pool_close(pool);
        }
        ig_pool_close(NULL);
        return 0;
    }
    ig_pool *pools[2] = {ig_pool_open(threads), ig_pool_open(threads)};
    int fault = 41;
    if (!strcmp(name, "tiny")) fault = check_tiny(pools[0], rounds, 50);
    if (!strcmp(name, "cover")) {
        fault = 0;
        for (int i = 0; i < rounds && !fault; i++) fault = check_cover(pools[0], i % 300, 1 + i % 11, i % 100, NULL);
    }
    if (!strcmp(name, "callers")) fault = callers(pools, 1, rounds);
    if (!strcmp(name, "pools")) fault = callers(pools, 2, rounds);
    if (!strcmp(name, "nested")) fault = check_nested(pools[0], 1);
    if (!strcmp(name, "asleep")) { /* workers wake; and the caller, whose last look finds others in their naps */
        struct timespec nap = {0, 2000000};
        fault = 0;
        for (int i = 0; i < rounds && !fault; i++) fault = meets(pools[0], threads) ? nanosleep(&nap, NULL) : 42;
    }
    if (!strcmp(name, "late")) fault = check_late(pools[0], rounds);
    if (!strcmp(name, "fork")) fault = check_fork(pools[0], 0);
    if (!strcmp(name, "fork-early")) fault = check_fork(pools[0], 1);
    ig_pool_close(pools[0]), ig_pool_close(pools[1]);
    return fault;
}

int main(int count, char **arguments) {
    if (count != 4) return 50;
    int fault = run_scenario(arguments[1], atoi(arguments[2]), atoi(arguments[3]));
    if (fault) printf("%s: fault %d\n", arguments[1], fault);
    return fault;
}
