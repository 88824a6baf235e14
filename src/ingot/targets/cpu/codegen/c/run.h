#define IG_HOST_ONLY 1 /* tensors lie nowhere else */

typedef struct ig_block {
    struct ig_block *next;
} ig_block;

/* An index that is out of range, and what it was to be in: `first` to `size` - 1. */
typedef struct {
    int64_t value, first, size;
    int is_known;
} ig_index;

/* When a thread worked on a launch, in seconds; thread -1: from when it was launched until all were done. */
typedef struct {
    double begin, end;
    int64_t launch, thread;
} ig_interval;

/* What a worker did last: all that it does in one launch is one interval. */
typedef struct {
    _Alignas(64) int64_t call;
    ig_interval *interval;
} ig_worked;

typedef struct {
    ig_interval *intervals;
    int64_t room;
    _Atomic int64_t count; /* may be more than there is room for */
    double start;
    ig_worked *workers;
} ig_trace;

typedef struct ig_run {
    struct ig_run *next;
    ig_pool *pool;
    char *arena, *scratch;
    int64_t arena_size, scratch_size, scratch_each;
    ig_block *blocks; /* what was allocated on the way */
    uint64_t seed, draw;
    int64_t launches; /* so far */
    _Atomic int status;
    int site;
    ig_index index;
    double *seconds;  /* of each launch, when profiling */
    ig_trace *trace;  /* of all threads, when tracing */
} ig_run;

typedef struct ingot_model {
    const char *weights;
    char *state;
    ig_pool *pool;
    ig_run *idle;
    pthread_mutex_t lock, turn;
    uint64_t seed, draws;
} ingot_model;

typedef struct {
    void *const *p;
    const int64_t *n;
    ig_run *run;
    int64_t launch; /* its number in the call */
    int site;
} ig_call;

IG_OPTIONAL void ig_fail_run(ig_run *run, int status, int site)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&run->status, &none, status)) run->site = site;
}

IG_OPTIONAL void ig_fail(const ig_call *c, int status) { ig_fail_run(c->run, status, c->site); }

/* Of an index whose place is not below `size`. If it `wraps`, `size` was added to it where it is negative. */
IG_OPTIONAL void ig_fail_index(ig_run *run, int site, uint64_t place, int64_t size, int wraps)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&run->status, &none, INGOT_INDEX)) return;
    const int64_t value = wraps && (int64_t)place < 0 ? (int64_t)(place - (uint64_t)size) : (int64_t)place;
    run->site = site;
    run->index = (ig_index){value, wraps ? -size : 0, size, 1};
}

IG_OPTIONAL char *ig_scratch(const ig_call *c, int worker) { return c->run->scratch + worker * c->run->scratch_each; }

/* The last thing that a worker did, behind its scratch. */
typedef struct {
    _Alignas(64) int64_t launch;
    int64_t task;
} ig_last;

static ig_last *ig_last_of(ig_run *run, int worker)
{
    return (ig_last *)(run->scratch + (worker + 1) * run->scratch_each) - 1;
}

/* Whether what this worker did last is the task before this one, so that its scratch holds what that one left. */
IG_OPTIONAL int ig_goes_on(const ig_call *c, int worker, int64_t task)
{
    ig_last *const last = ig_last_of(c->run, worker);
    const int goes_on = last->launch == c->launch && last->task + 1 == task;
    *last = (ig_last){c->launch, task};
    return goes_on;
}

static double ig_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void ig_add_interval(ig_trace *trace, ig_interval interval, ig_interval **added)
{
    const int64_t place = atomic_fetch_add(&trace->count, 1);
    *added = place < trace->room ? trace->intervals + place : 0;
    if (*added) **added = interval;
}

typedef struct {
    ig_task task;
    ig_call *call;
    int launch;
} ig_traced;

static void ig_trace_task(void *context, int64_t begin, int64_t end, int worker)
{
    const ig_traced *const traced = context;
    ig_trace *const trace = traced->call->run->trace;
    ig_worked *const worked = &trace->workers[worker];
    const double at = ig_now() - trace->start;
    traced->task(traced->call, begin, end, worker);
    const double until = ig_now() - trace->start;
    if (worked->call == traced->call->launch) {
        if (worked->interval) worked->interval->end = until;
        return;
    }
    worked->call = traced->call->launch;
    ig_add_interval(trace, (ig_interval){at, until, traced->launch, worker}, &worked->interval);
}

__attribute__((noinline, unused)) static void ig_trace_launch(
    ig_run *run, int launch, ig_task task, ig_call *call, int64_t total, int64_t grain)
{
    ig_traced traced = {task, call, launch};
    ig_interval *added;
    const double begin = ig_now() - run->trace->start;
    ig_parallel(run->pool, ig_trace_task, &traced, total, grain);
    ig_add_interval(run->trace, (ig_interval){begin, ig_now() - run->trace->start, launch, -1}, &added);
}

__attribute__((noinline, unused)) static void ig_launch(
    ig_run *run, int launch, ig_task task, void *const *p, const int64_t *n, int site, int64_t total, int64_t grain)
{
    ig_call call = {p, n, run, ++run->launches, site};
    if (total <= 0 || run->status) return;
    if (grain < 1) grain = 1;
    if (run->trace) {
        ig_trace_launch(run, launch, task, &call, total, grain);
        return;
    }
    const double begin = run->seconds ? ig_now() : 0;
    ig_parallel(run->pool, task, &call, total, grain);
    if (run->seconds) run->seconds[launch] += ig_now() - begin;
}

#define LAUNCH(launch, kernel, site, total, grain, ...) \
    ig_launch(run, launch, kernel, (void *[]){__VA_ARGS__}, n, site, total, grain)

/* Memory of that size; much of it in large pages, where the system has them. */
IG_OPTIONAL char *ig_pages(int64_t size)
{
    const size_t bytes = (size_t)ig_round_up(size);
#ifdef __linux__
    const size_t large = (size_t)2 << 20;
    if (bytes >= 4 * large) {
        const size_t whole = (bytes + large - 1) / large * large;
        char *const memory = aligned_alloc(large, whole);
        if (memory) madvise(memory, whole, MADV_HUGEPAGE); /* a wish: where it is not granted nothing is lost */
        return memory;
    }
#endif
    return aligned_alloc(64, bytes);
}

IG_OPTIONAL char *ig_reserve(ig_run *run, char **memory, int64_t *held, int64_t size)
{
    if (!*memory || *held < size) {
        free(*memory);
        *held = size;
        *memory = ig_pages(size);
        if (!*memory) *held = 0, ig_fail_run(run, INGOT_MEMORY, -1);
    }
    return *memory;
}

IG_OPTIONAL char *ig_reserve_arena(ig_run *run, int64_t size)
{
    return ig_reserve(run, &run->arena, &run->arena_size, size);
}

IG_OPTIONAL int ig_reserve_scratch(ig_run *run, int64_t each)
{
    const int threads = ig_pool_threads(run->pool);
    if (each > IG_MOST_BYTES / threads) {
        ig_fail_run(run, INGOT_MEMORY, -1);
        return 0;
    }
    run->scratch_each = ig_round_up(each) + (int64_t)sizeof(ig_last);
    if (!each) return 1;
    if (!ig_reserve(run, &run->scratch, &run->scratch_size, run->scratch_each * threads)) return 0;
    for (int worker = 0; worker < threads; ++worker) ig_last_of(run, worker)->launch = 0;
    return 1;
}

/* For a kernel whose need is known only on the way. */
IG_OPTIONAL int ig_reserve_more_scratch(ig_run *run, int64_t each)
{
    return ig_reserve_scratch(run, ig_max(run->scratch_each - (int64_t)sizeof(ig_last), each));
}

/* Memory whose size the run found out on its way; freed with the run. */
IG_OPTIONAL void *ig_allocate(ig_run *run, int64_t size)
{
    char *const memory = aligned_alloc(64, 64 + (size_t)ig_round_up(size));
    if (!memory) {
        ig_fail_run(run, INGOT_MEMORY, -1);
        return 0;
    }
    ig_block *const block = (ig_block *)memory;
    block->next = run->blocks;
    run->blocks = block;
    return memory + 64;
}
