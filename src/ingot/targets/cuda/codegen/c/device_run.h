/* A run: one call of the model, with memory of its own on the device, so that several callers never meet. */

/* A use of something ends here on this stream. */
static void ig_set_end(ig_end *end, ig_cu_stream stream)
{
    end->stream = stream;
    end->is_recorded = stream != 0;
    if (!stream || !ig_driver.cuEventRecord(end->event, stream)) end->was_used = 1;
}

/* The event behind the last use, of which there is one. */
static ig_cu_event ig_event_of(ig_end *end)
{
    if (!end->is_recorded) end->is_recorded = !ig_driver.cuEventRecord(end->event, 0);
    return end->event;
}

/* What this stream does next waits for that end. */
static void ig_wait_for_end(ig_run *run, ig_end *end)
{
    if (end->was_used && end->stream != run->stream) IG_TRY(run, cuStreamWaitEvent, run->stream, ig_event_of(end), 0);
}

IG_OPTIONAL ig_address ig_reserve(ig_run *run, ig_address *memory, int64_t *held, int64_t size)
{
    if (run->status) return 0;
    if (!*memory || *held < size) {
        if (run->done.was_used) IG_TRY(run, cuEventSynchronize, ig_event_of(&run->done)); /* the call before may still use it */
        if (*memory) ig_driver.cuMemFree_v2(*memory);
        *memory = 0;
        *held = 0;
        IG_TRY(run, cuMemAlloc_v2, memory, (size_t)ig_max(size, 256));
        if (run->status) return 0;
        *held = size;
    }
    return *memory;
}

IG_OPTIONAL ig_address ig_reserve_arena(ig_run *run, int64_t size)
{
    return ig_reserve(run, &run->arena, &run->arena_size, size);
}

/* The memory that a step has for itself. It may grow on the way: what was launched before is then waited for. */
IG_OPTIONAL int ig_reserve_scratch(ig_run *run, int64_t size)
{
    if (!size) return !run->status;
    if (run->scratch && run->scratch_size < size && IG_AT_ONCE) IG_TRY(run, cuStreamSynchronize, run->stream);
    return ig_reserve(run, &run->scratch, &run->scratch_size, size) != 0;
}

/* Memory whose size the run found out on its way; freed with the run. */
IG_OPTIONAL ig_address ig_allocate(ig_run *run, int64_t size)
{
    if (run->status) return 0;
    ig_block *const block = calloc(1, sizeof *block);
    if (!block) {
        ig_fail_run(run, INGOT_MEMORY, -1);
        return 0;
    }
    IG_TRY(run, cuMemAllocAsync, &block->memory, (size_t)ig_max(size, 256), run->stream);
    if (run->status) {
        free(block);
        return 0;
    }
    block->next = run->blocks;
    run->blocks = block;
    return block->memory;
}

static void ig_free_blocks(ig_run *run)
{
    for (ig_block *block = run->blocks, *next; block; block = next) {
        next = block->next;
        ig_driver.cuMemFreeAsync(block->memory, run->stream);
        free(block);
    }
    run->blocks = 0;
}

/* What kernels have reported so far. */
static void ig_read_status(ig_run *run)
{
    const unsigned word = *run->status_word;
    if (!word) return;
    *run->status_word = 0;
    ig_fail_run(run, (int)(word & 255), (int)(word >> 8));
}

/* The value that the kernel launched last has computed; 0 where the run has failed. */
IG_OPTIONAL int64_t ig_read_value(ig_run *run)
{
    if (run->status) return 0;
    IG_TRY(run, cuStreamSynchronize, run->stream);
    ig_read_status(run);
    return run->status ? 0 : *run->value;
}

static void ig_free_run(ig_run *run)
{
    if (!run) return;
    if (run->done.was_used) ig_driver.cuEventSynchronize(ig_event_of(&run->done));
    for (int g = 0; g < IG_GRAPHS; ++g) ig_free_graph(&run->graphs[g]);
    ig_free_list(&run->list);
    const ig_address memories[] = {run->arena, run->scratch, run->staging, run->barrier};
    for (int m = 0; m < 4; ++m)
        if (memories[m]) ig_driver.cuMemFree_v2(memories[m]);
    if (run->status_word) ig_driver.cuMemFreeHost((void *)run->status_word);
    const ig_cu_event events[] = {run->done.event, run->begin, run->end};
    for (int e = 0; e < 3; ++e)
        if (events[e]) ig_driver.cuEventDestroy_v2(events[e]);
    if (run->own) ig_driver.cuStreamDestroy_v2(run->own);
    free(run);
}

static int ig_prepare_run(ig_run *run, char *message, size_t size)
{
    void *pinned = 0;
    IG_CALL(cuStreamCreate, &run->own, 0); /* one that waits for the default stream, as callers expect */
    IG_CALL(cuEventCreate, &run->done.event, IG_EVENT_WITHOUT_TIME);
    IG_CALL(cuEventCreate, &run->begin, 0);
    IG_CALL(cuEventCreate, &run->end, 0);
    IG_CALL(cuMemHostAlloc, &pinned, 128, IG_HOST_MAPPED);
    memset(pinned, 0, 128);
    run->status_word = pinned;
    run->value = (volatile int64_t *)((char *)pinned + 64);
    IG_CALL(cuMemHostGetDevicePointer_v2, &run->status_address, pinned, 0);
    run->value_address = run->status_address + 64;
    if (IG_TOGETHER) {
        IG_CALL(cuMemAlloc_v2, &run->barrier, 256);
        IG_CALL(cuMemsetD32Async, run->barrier, 0, 64, run->own);
        IG_CALL(cuStreamSynchronize, run->own);
    }
    return INGOT_OK;
}

/* A run that no caller uses: at best one whose last call was on this stream, or is over; `own` asks for its own stream. */
static int ig_take_run(ingot_model *model, int own, ig_cu_stream stream, ig_run **taken, char *message, size_t size)
{
    enum { RUNS = 8 };
    ig_run **found = 0;
    pthread_mutex_lock(&model->lock);
    for (ig_run **at = &model->idle; *at; at = &(*at)->next) {
        ig_run *const one = *at;
        if (!one->done.was_used || (!own && one->done.stream == stream) || !ig_driver.cuEventQuery(ig_event_of(&one->done))) {
            found = at;
            break;
        }
    }
    if (!found && model->run_count >= RUNS && model->idle) found = &model->idle;
    ig_run *run = found ? *found : 0;
    if (run) *found = run->next;
    else ++model->run_count;
    const uint64_t seed = model->seed, draw = model->draws;
    model->draws += IG_DRAWS;
    pthread_mutex_unlock(&model->lock);
    if (!run) {
        run = calloc(1, sizeof *run);
        const int status = run ? ig_prepare_run(run, message, size) : INGOT_MEMORY;
        if (status) {
            ig_free_run(run);
            pthread_mutex_lock(&model->lock);
            --model->run_count;
            pthread_mutex_unlock(&model->lock);
            return status;
        }
        run->model = model;
    }
    run->seed = seed;
    run->draw = draw;
    run->status = 0;
    run->site = -1;
    run->stream = own ? run->own : stream;
    run->message = message;
    run->message_size = size;
    run->list.count = run->list.word_count = 0;
    *taken = run;
    return INGOT_OK;
}

static void ig_give_run(ingot_model *model, ig_run *run)
{
    run->message = 0;
    run->seconds = 0;
    pthread_mutex_lock(&model->lock);
    run->next = model->idle;
    model->idle = run;
    pthread_mutex_unlock(&model->lock);
}

/* ---- tensors that do not lie where kernels can read them */

static const unsigned char ig_item_sizes[] = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 2, 4, 8};

static int64_t ig_tensor_bytes(const ingot_tensor *t)
{
    int64_t count = 1;
    for (int d = 0; d < t->rank; ++d) count *= t->shape[d];
    return count * ig_item_sizes[t->dtype];
}

/* What a tensor takes of the staging memory. */
static int64_t ig_staged_bytes(const ingot_tensor *t) { return (ig_tensor_bytes(t) + 255) / 256 * 256; }

/* Kernels read 16 bytes at once: what begins elsewhere is copied. */
static int ig_is_staged(const ingot_tensor *t) { return !t->device || ((uintptr_t)t->data & 15) != 0; }

static void ig_copy_in(ig_run *run, const ingot_tensor *t, ig_address to)
{
    const size_t bytes = (size_t)ig_tensor_bytes(t);
    if (!bytes || run->status) return;
    if (t->device) IG_TRY(run, cuMemcpyDtoDAsync_v2, to, (ig_address)(uintptr_t)t->data, bytes, run->stream);
    else IG_TRY(run, cuMemcpyHtoDAsync_v2, to, t->data, bytes, run->stream);
}

static void ig_copy_out(ig_run *run, const ingot_tensor *t, ig_address from)
{
    const size_t bytes = (size_t)ig_tensor_bytes(t);
    if (!bytes || run->status) return;
    if (t->device) IG_TRY(run, cuMemcpyDtoDAsync_v2, (ig_address)(uintptr_t)t->data, from, bytes, run->stream);
    else IG_TRY(run, cuMemcpyDtoHAsync_v2, t->data, from, bytes, run->stream);
}

/* Where kernels find inputs and outputs; copies in what they read. */
static void ig_stage(ig_run *run, const ingot_tensor *inputs, const ingot_tensor *outputs)
{
    int64_t total = 0;
    for (int i = 0; i < IG_INPUTS; ++i)
        if (ig_input_uses[i] && ig_is_staged(&inputs[i])) total += ig_staged_bytes(&inputs[i]);
    for (int o = 0; o < IG_OUTPUTS; ++o)
        if (ig_is_staged(&outputs[o])) total += ig_staged_bytes(&outputs[o]);
    ig_address at = total ? ig_reserve(run, &run->staging, &run->staging_size, total) : 0;
    if (run->status) return;
    for (int i = 0; i < IG_INPUTS; ++i) {
        run->inputs[i] = ig_input_uses[i] ? (ig_address)(uintptr_t)inputs[i].data : 0;
        if (!ig_input_uses[i] || !ig_is_staged(&inputs[i])) continue;
        run->inputs[i] = at;
        ig_copy_in(run, &inputs[i], at);
        at += (ig_address)ig_staged_bytes(&inputs[i]);
    }
    for (int o = 0; o < IG_OUTPUTS; ++o) {
        run->outputs[o] = (ig_address)(uintptr_t)outputs[o].data;
        if (!ig_is_staged(&outputs[o])) continue;
        run->outputs[o] = at;
        at += (ig_address)ig_staged_bytes(&outputs[o]);
    }
}

/* Copies out what they wrote; whether any of it goes to the host. */
static int ig_unstage(ig_run *run, const ingot_tensor *inputs, const ingot_tensor *outputs)
{
    int to_host = 0;
    for (int i = 0; i < IG_INPUTS; ++i)
        if (ig_input_uses[i] == 2 && ig_is_staged(&inputs[i])) {
            to_host |= !inputs[i].device;
            ig_copy_out(run, &inputs[i], run->inputs[i]);
        }
    for (int o = 0; o < IG_OUTPUTS; ++o)
        if (ig_is_staged(&outputs[o])) {
            to_host |= !outputs[o].device;
            ig_copy_out(run, &outputs[o], run->outputs[o]);
        }
    return to_host;
}
