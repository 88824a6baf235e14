
#ifndef IG_ISA
#define IG_ISA ""
#endif
#define INGOT_EXPORT __attribute__((visibility("default")))

INGOT_EXPORT const ingot_info *ingot_describe(void)
{
    /* One text serves every instruction set and all weights of this layout: no hash of them is in it. */
    static const ingot_info info = {2, IG_INPUTS, IG_OUTPUTS, IG_SYMBOLS, IG_ISA, "", IG_WEIGHTS_SIZE};
    return &info;
}

INGOT_EXPORT void ingot_close(ingot_model *model)
{
    if (!model) return;
    for (ig_run *run = model->idle, *next; run; run = next) {
        next = run->next;
        free(run->arena);
        free(run->scratch);
        free(run);
    }
    ig_pool_close(model->pool);
    pthread_mutex_destroy(&model->lock);
    pthread_mutex_destroy(&model->turn);
    free(model->state);
    free(model);
}

INGOT_EXPORT int ingot_open(const void *weights, int threads, ingot_model **out)
{
    ingot_model *const model = calloc(1, sizeof *model);
    if (!model) return INGOT_MEMORY;
    pthread_mutex_init(&model->lock, 0);
    pthread_mutex_init(&model->turn, 0);
    model->weights = weights;
    model->pool = ig_pool_open(threads);
    if (IG_STATEFUL) {
        /* State has the places it has in the weights; the pages between are never touched. */
        model->state = aligned_alloc(64, (size_t)ig_round_up(IG_WEIGHTS_SIZE));
        if (model->state)
            for (size_t s = 0; s < sizeof ig_states / sizeof *ig_states; ++s)
                memcpy(model->state + ig_states[s][0], model->weights + ig_states[s][0], (size_t)ig_states[s][1]);
    }
    if (!model->pool || (IG_STATEFUL && !model->state)) {
        if (model->pool) ig_pool_close(model->pool);
        free(model->state);
        free(model);
        return INGOT_MEMORY;
    }
    *out = model;
    return INGOT_OK;
}

INGOT_EXPORT void ingot_seed(ingot_model *model, uint64_t seed)
{
    pthread_mutex_lock(&model->lock);
    model->seed = seed;
    model->draws = 0;
    pthread_mutex_unlock(&model->lock);
}

/* The sizes of a call into `n`: those that its inputs bind. */
static int ig_prepare(const ingot_tensor *inputs, int64_t *n, char *message, size_t size)
{
    const int status = ig_bind(inputs, n, message, size);
    if (status) return status;
    const int site = ig_sizes_fit(n);
    if (site < 0) return INGOT_OK;
    if (message && size)
        snprintf(message, size, "out of memory: for these inputs, what this needs is too large for any machine: %s", ig_sites[site]);
    return INGOT_MEMORY;
}

INGOT_EXPORT int ingot_sizes(ingot_model *model, const ingot_tensor *inputs, int64_t *sizes, char *message, size_t size)
{
    (void)model;
    int64_t n[IG_SYMBOLS + 1] = {0};
    const int status = ig_prepare(inputs, n, message, size);
    if (status) return status;
    ig_shapes(n, sizes);
    return ig_check_shapes(sizes, message, size);
}

static void ig_explain_index(const ig_index *index, const char *site, char *message, size_t size)
{
    char range[96] = "a dim without elements";
    if (index->size > 0)
        snprintf(range, sizeof range, "a dim of %lld elements (valid: %lld to %lld)", (long long)index->size,
                 (long long)index->first, (long long)index->size - 1);
    snprintf(message, size, "index %lld is out of range for %s: %s", (long long)index->value, range, site);
}

static int ig_execute(
    ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, double *seconds, ig_trace *trace, char *message,
    size_t size)
{
    int64_t n[IG_SYMBOLS + 1] = {0}, sizes[IG_SIZES] = {0};
    int status = ig_prepare(inputs, n, message, size);
    if (status) return status;
    ig_shapes(n, sizes);
    for (int o = 0, at = 0; o < IG_OUTPUTS; at += ig_ranks[o++]) {
        char name[32];
        snprintf(name, sizeof name, "output %d", o);
        if (!ig_input(&outputs[o], name, ig_dtypes[o], ig_ranks[o], message, size)) return INGOT_INVALID;
        for (int d = 0; d < ig_ranks[o]; ++d)
            if (!ig_dim(&outputs[o], name, d, sizes[at + d], message, size)) return INGOT_INVALID;
    }
    if (IG_STATEFUL) pthread_mutex_lock(&model->turn);
    pthread_mutex_lock(&model->lock);
    ig_run *run = model->idle;
    if (run) model->idle = run->next;
    const uint64_t seed = model->seed, draw = model->draws;
    model->draws += IG_DRAWS;
    pthread_mutex_unlock(&model->lock);
    if (!run) run = calloc(1, sizeof *run);
    if (!run) {
        if (IG_STATEFUL) pthread_mutex_unlock(&model->turn);
        return INGOT_MEMORY;
    }
    run->pool = model->pool;
    run->seed = seed;
    run->draw = draw;
    run->status = 0;
    run->index.is_known = 0;
    run->seconds = seconds;
    run->trace = trace;
    ig_model_run(model, run, inputs, outputs, n);
    status = run->status;
    for (ig_block *block = run->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    run->blocks = 0;
    if (status == INGOT_INDEX && run->index.is_known && message && size) {
        ig_explain_index(&run->index, run->site < 0 ? "" : ig_sites[run->site], message, size);
    } else if (status && message && size) {
        static const char *const why[] = {"", "", "", "an index is out of range: ", "out of memory: ", "division by zero: "};
        snprintf(message, size, "%s%s", why[status], run->site < 0 ? "" : ig_sites[run->site]);
    }
    pthread_mutex_lock(&model->lock);
    run->next = model->idle;
    model->idle = run;
    pthread_mutex_unlock(&model->lock);
    if (IG_STATEFUL) pthread_mutex_unlock(&model->turn);
    return status;
}

INGOT_EXPORT int ingot_run(
    ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, char *message, size_t size)
{
    return ig_execute(model, inputs, outputs, 0, 0, message, size);
}

INGOT_EXPORT int ingot_profile(
    ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, double *seconds, char *message, size_t size)
{
    return ig_execute(model, inputs, outputs, seconds, 0, message, size);
}

/* As ingot_run; writes when each thread worked on what. `count` is the number of intervals, of which at
   most `room` are written. */
INGOT_EXPORT int ingot_trace(
    ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, void *intervals, int64_t room, int64_t *count,
    char *message, size_t size)
{
    ig_worked *const workers = aligned_alloc(64, (size_t)ig_pool_threads(model->pool) * sizeof *workers);
    if (!workers) return INGOT_MEMORY;
    for (int worker = 0; worker < ig_pool_threads(model->pool); ++worker) workers[worker].call = 0;
    ig_trace trace = {intervals, room, 0, ig_now(), workers};
    const int status = ig_execute(model, inputs, outputs, 0, &trace, message, size);
    *count = trace.count;
    free(workers);
    return status;
}
