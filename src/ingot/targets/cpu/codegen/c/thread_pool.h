/* The thread pool of generated code.

   One word, the gate, carries the whole protocol between the caller of ig_parallel and the workers:

       job number | WAITS | STOP | OPEN | workers inside

   The caller writes the job, opens the gate, and works on it like everyone else. A worker that sees the gate open may
   come in (one more inside), takes chunks until none is left, and leaves. When the caller finds no chunk left it closes
   the gate and waits until no thread is inside: a job ends with its last chunk, and a worker that was asleep or not
   scheduled meanwhile is not waited for, but finds the gate closed. Every decision is taken on the gate's current value,
   so a job number that wraps around costs at most some help.

   The few atomic operations that a job costs beside its chunks are left at seq_cst, which sleeping needs anyway.
   GNU C11 and pthreads. On Linux it sleeps on futexes, elsewhere (or with IG_POOL_PORTABLE) on a condition variable. */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#elif !defined(IG_POOL_PORTABLE)
#define IG_POOL_PORTABLE
#endif

/* One chunk, [begin, end). `worker` distinguishes the tasks of one call that run at the same time; it says nothing about
   tasks of other calls, so scratch memory indexed by it must belong to the call. A task must not fork. */
typedef void (*ig_task)(void *context, int64_t begin, int64_t end, int worker);

enum {
    IG_INSIDE = 0x3ff, /* the gate: how many workers are inside */
    IG_OPEN = 0x400,   /* whether more may come in */
    IG_STOP = 0x800,   /* whether all must end */
    IG_WAITS = 0x1000, /* whether the caller sleeps until the last one leaves */
    IG_JOB = 0x2000,   /* the next job number */
    IG_THREADS_MAX = IG_INSIDE + 1, /* the workers and the caller */
    IG_SPIN_NS = 30000,             /* longer than what lies between two kernels of a model, mostly */
    IG_LINGER_NS = 1000000          /* longer than what lies between two calls of a model in a loop */
};

typedef struct {
    ig_task task;
    void *context;
    int64_t total, grain, lanes;
    uint64_t float_modes; /* of the caller */
} ig_job;

/* A worker (lane 0: the caller) and the block of chunks it begins with, in a cache line of its own. */
typedef struct {
    _Alignas(64) _Atomic int64_t next; /* next chunk of the block to take; `end` or more: none */
    int64_t end;
    struct ig_pool *pool;
    pthread_t thread;
} ig_lane;

typedef struct ig_pool {
    int threads, crowded;
    _Alignas(64) _Atomic uint32_t owner; /* 2 × forks before this state of the pool, + 1 while a caller has it */
    int started;                         /* how many workers run; the owner's */
    _Alignas(64) _Atomic uint32_t gate;
    _Alignas(64) _Atomic uint32_t asleep; /* how many workers sleep, or are about to, on the gate */
    _Atomic uint32_t left;                /* changes when the last worker leaves a caller that WAITS */
    _Alignas(64) ig_job job; /* written by the owner while no thread is inside */
    ig_lane lanes[];
} ig_pool;

/* Float modes (subnormals flushed or kept, rounding) belong to a thread. Workers take on the caller's, or else a result
   would depend on who computed it. */
#if defined(__x86_64__)
#define IG_GET_MODES(modes) ((modes) = __builtin_ia32_stmxcsr())
#define IG_SET_MODES(modes) __builtin_ia32_ldmxcsr((unsigned)(modes))
#define IG_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define IG_GET_MODES(modes) __asm__ volatile("mrs %0, fpcr" : "=r"(modes))
#define IG_SET_MODES(modes) __asm__ volatile("msr fpcr, %0" : : "r"(modes))
#define IG_PAUSE() __asm__ volatile("isb") /* `yield` does nothing on most cores */
#else
#define IG_GET_MODES(modes) ((modes) = 0)
#define IG_SET_MODES(modes) ((void)(modes))
#define IG_PAUSE() ((void)0)
#endif

/* ig_sleep returns when woken, at once where *word is not `value`, and now and then for no reason. ig_wake wakes at
   least `count` of those that sleep on a word, which was changed before. */
#ifndef IG_POOL_PORTABLE
#define ig_sleep(word, value) ((void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0))
#define ig_wake(word, count) ((void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0))
#else
static pthread_mutex_t ig_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ig_changed = PTHREAD_COND_INITIALIZER;
static void ig_sleep(_Atomic uint32_t *word, uint32_t value) {
    pthread_mutex_lock(&ig_mutex);
    if (atomic_load(word) == value) pthread_cond_wait(&ig_changed, &ig_mutex);
    pthread_mutex_unlock(&ig_mutex);
}
static void ig_wake(_Atomic uint32_t *word, int count) {
    (void)word, (void)count;
    pthread_mutex_lock(&ig_mutex); /* not between a sleeper's look at the word and its sleep */
    pthread_cond_broadcast(&ig_changed);
    pthread_mutex_unlock(&ig_mutex);
}
#endif

/* One turn of a spin, whose `since` starts as 0; false when it has lasted long enough. The limit is time, not turns: a
   pause takes anything from 10 to 140 cycles. To wake a thread, and a core that sleeps, takes as long as a small model:
   a worker lingers after a call, but from then on yields its core. */
static int ig_spin(const ig_pool *pool, int64_t *since) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    int64_t now = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    if (!*since) *since = now;
    if (pool->crowded || now - *since > IG_SPIN_NS) sched_yield();
    else IG_PAUSE();
    return now - *since < IG_LINGER_NS;
}

static inline void ig_run_chunk(const ig_job *job, int64_t chunk, int worker) {
    int64_t begin = chunk * job->grain, left = job->total - begin;
    job->task(job->context, begin, left > job->grain ? begin + job->grain : job->total, worker);
}

/* Runs chunks, first of the worker's own block, then of the others', until all are taken. */
static void ig_work(ig_pool *pool, int worker) {
    const ig_job job = pool->job;
    for (int64_t step = 0; step < job.lanes; step++) {
        ig_lane *lane = &pool->lanes[(worker + step) % job.lanes];
        while (atomic_load_explicit(&lane->next, memory_order_relaxed) < lane->end) {
            int64_t chunk = atomic_fetch_add_explicit(&lane->next, 1, memory_order_relaxed);
            if (chunk < lane->end) ig_run_chunk(&job, chunk, worker);
        }
    }
}

/* Waits for a gate that is open for another job than `seen`, or says to stop. */
static uint32_t ig_await(ig_pool *pool, uint32_t seen) {
    int64_t since = 0;
    uint32_t gate, asleep = 0;
    while (gate = atomic_load(&pool->gate), !(gate & IG_STOP) && (!(gate & IG_OPEN) || gate / IG_JOB == seen)) {
        if (asleep) {
            ig_sleep(&pool->gate, gate);
        } else if (!ig_spin(pool, &since)) {
            /* Said before the gate is looked at again, as the caller opens it before looking who is asleep: all four
               are seq_cst, so one of the two sees the other. */
            asleep = 1;
            atomic_fetch_add(&pool->asleep, 1);
        }
    }
    if (asleep) atomic_fetch_sub(&pool->asleep, 1);
    return gate;
}

static void *ig_worker(void *argument) {
    ig_lane *lane = argument;
    ig_pool *pool = lane->pool;
    uint32_t seen = 0;
    for (;;) {
        uint32_t gate = ig_await(pool, seen);
        if (gate & IG_STOP) return NULL;
        if (!atomic_compare_exchange_strong(&pool->gate, &gate, gate + 1)) continue; /* someone came, left, closed it */
        seen = gate / IG_JOB;
        IG_SET_MODES(pool->job.float_modes);
        ig_work(pool, (int)(lane - pool->lanes));
        gate = atomic_fetch_sub(&pool->gate, 1);
        if (gate & IG_WAITS && (gate & IG_INSIDE) == 1) {
            atomic_fetch_add(&pool->left, 1);
            ig_wake(&pool->left, 1);
        }
    }
}

/* Closes the gate and waits until no thread is inside. */
static void ig_join(ig_pool *pool) {
    int64_t since = 0;
    uint32_t gate = atomic_fetch_and(&pool->gate, ~(uint32_t)IG_OPEN);
    while (gate & IG_INSIDE && ig_spin(pool, &since)) gate = atomic_load(&pool->gate);
    if (!(gate & IG_INSIDE)) return;
    atomic_fetch_or(&pool->gate, IG_WAITS);
    for (;;) {
        uint32_t left = atomic_load(&pool->left); /* first: who leaves after the look at the gate changes it */
        if (!(atomic_load(&pool->gate) & IG_INSIDE)) return;
        ig_sleep(&pool->left, left);
    }
}

/* How often this process was forked off while pools existed: a pool whose owner word counts fewer has lost its threads,
   perhaps in the middle of a job. A count costs a load; asking for the pid would be a system call. */
static _Atomic uint32_t ig_forks, ig_forks_error;
static pthread_once_t ig_forks_once = PTHREAD_ONCE_INIT;
static void ig_forked(void) {
    atomic_fetch_add(&ig_forks, 1);
#ifdef IG_POOL_PORTABLE
    ig_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* a thread that does not exist here may have held it */
    ig_changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
#endif
}
static void ig_count_forks(void) { ig_forks_error = pthread_atfork(NULL, NULL, ig_forked) != 0; }

/* Starts the workers, or as many of them as the system allows, whatever the state the pool was left in. */
static void ig_start(ig_pool *pool) {
    pool->gate = pool->asleep = pool->left = 0;
    pool->started = 0;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return;
    pthread_attr_setstacksize(&attributes, 2 << 20);
    /* Signals are the business of the program's own threads; but a fault must reach its handler where it happens. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    for (int worker = 1; worker < pool->threads; worker++) {
        ig_lane *lane = &pool->lanes[worker];
        lane->pool = pool;
        if (pthread_create(&lane->thread, &attributes, ig_worker, lane)) break;
        pool->started = worker;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* Takes the pool for one caller; 0 if another has it, or this very thread further up its stack. */
static int ig_claim(ig_pool *pool) {
    uint32_t forks = atomic_load(&ig_forks), owner = atomic_load(&pool->owner);
    if (owner == 2 * forks + 1 || !atomic_compare_exchange_strong(&pool->owner, &owner, 2 * forks + 1)) return 0;
    if (owner / 2 != forks) ig_start(pool);
    return 1;
}

static int ig_cores(void) {
#ifdef __linux__
    unsigned long mask[128]; /* 8192 cores; cpu_set_t holds 1024, and the call fails on a machine with more */
    long size = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    int cores = 0;
    for (long i = 0; i < size / (long)sizeof *mask; i++) cores += __builtin_popcountl(mask[i]);
    if (cores) return cores;
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* A pool of so many threads, the caller of ig_parallel among them; 0: one for each core that this process may use.
   Threads start with the first call that needs them. NULL when out of memory. */
static ig_pool *ig_pool_open(int threads) {
    int cores = ig_cores();
    if (threads <= 0) threads = cores;
    if (threads > IG_THREADS_MAX) threads = IG_THREADS_MAX;
    if (pthread_once(&ig_forks_once, ig_count_forks) || ig_forks_error) return NULL;
    ig_pool *pool = aligned_alloc(64, sizeof(ig_pool) + (size_t)threads * sizeof(ig_lane));
    if (!pool) return NULL;
    pool->threads = threads;
    pool->crowded = threads > cores;
    atomic_init(&pool->owner, 2 * atomic_load(&ig_forks) - 2); /* as after a fork: the first call starts the threads */
    return pool;
}

/* Ends the threads and frees the pool, which no call may be using. NULL is allowed. */
static void ig_pool_close(ig_pool *pool) {
    if (pool && atomic_load(&pool->owner) / 2 == atomic_load(&ig_forks)) { /* else it has no threads here */
        atomic_fetch_or(&pool->gate, IG_STOP);
        ig_wake(&pool->gate, pool->started);
        for (int worker = 1; worker <= pool->started; worker++) pthread_join(pool->lanes[worker].thread, NULL);
    }
    free(pool);
}

static int ig_pool_threads(const ig_pool *pool) { return pool->threads; }

/* Covers [0, total) by tasks, one for each chunk [k·grain, min((k+1)·grain, total)): the same chunks whatever the
   number of threads, each exactly once, in any order. `worker` is in [0, threads), and differs between tasks of this
   call that run at the same time. Returns when all are done. Never waits for another call: while one has the pool,
   each of the others, also from inside a task, runs all its chunks in its caller, as worker 0. */
static void ig_parallel(ig_pool *pool, ig_task task, void *context, int64_t total, int64_t grain) {
    if (total <= 0) return;
    if (grain < 1) grain = 1;
    ig_job job = {task, context, total, grain, 1, 0};
    int64_t chunks = total / grain + (total % grain != 0);
    if (chunks == 1 || pool->threads == 1 || !ig_claim(pool)) {
        for (int64_t chunk = 0; chunk < chunks; chunk++) ig_run_chunk(&job, chunk, 0);
        return;
    }
    job.lanes = pool->started + 1;
    IG_GET_MODES(job.float_modes);
    pool->job = job;
    int64_t first = 0;
    for (int64_t lane = 0; lane < job.lanes; lane++) {
        atomic_store_explicit(&pool->lanes[lane].next, first, memory_order_relaxed);
        first += chunks / job.lanes + (lane < chunks % job.lanes);
        pool->lanes[lane].end = first;
    }
    uint32_t number = atomic_load(&pool->gate) / IG_JOB + 1; /* the gate is closed and no thread inside: ours to write */
    atomic_store(&pool->gate, number * IG_JOB | IG_OPEN);
    if (atomic_load(&pool->asleep)) ig_wake(&pool->gate, chunks <= pool->started ? (int)chunks - 1 : pool->started);
    ig_work(pool, 0);
    ig_join(pool);
    atomic_fetch_and(&pool->owner, ~(uint32_t)1);
}
