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

INGOT_EXPORT int ingot_open(const void *weights, int threads, ingot_model **out)
{
    (void)weights, (void)threads, (void)out, (void)ig_states; /* state lies where it lies in the weights */
    return INGOT_DEVICE;
}

/* ---- opening */

static int ig_open_in_context(ingot_model *model, const void *weights, const ingot_image *image, int device, char *message, size_t size)
{
    int status = ig_load_image(model, image, message, size);
    if (status) return status;
    /* Code for older architectures has no instruction that waits. */
    model->is_hopper = !strcmp(image->architecture, "sm_90a");
    model->overlaps = ig_driver.cuGraphAddDependencies_v2 && ig_architecture_number(image->architecture) >= 90;
    IG_CALL(cuDeviceGetAttribute, &model->processors, IG_ATTRIBUTE_PROCESSORS, device);
    status = ig_find_kernels(model, device, message, size);
    if (status) return status;
    IG_CALL(cuEventCreate, &model->done.event, IG_EVENT_WITHOUT_TIME);
    if (!IG_WEIGHTS_SIZE) return INGOT_OK;
    IG_CALL(cuMemAlloc_v2, &model->weights, IG_WEIGHTS_SIZE);
    IG_CALL(cuMemcpyHtoDAsync_v2, model->weights, weights, IG_WEIGHTS_SIZE, 0);
    IG_CALL(cuStreamSynchronize, 0);
    return INGOT_OK;
}

INGOT_EXPORT void ingot_close(ingot_model *model)
{
    if (!model) return;
    if (model->context) {
        ig_cu_context before;
        ig_driver.cuCtxPushCurrent_v2(model->context);
        for (ig_run *run = model->idle, *next; run; run = next) {
            next = run->next;
            ig_free_run(run);
        }
        if (model->weights) ig_driver.cuMemFree_v2(model->weights);
        if (model->done.event) ig_driver.cuEventDestroy_v2(model->done.event);
        for (int p = 0; p < IG_IMAGE_PARTS; ++p)
            if (model->modules[p]) ig_driver.cuModuleUnload(model->modules[p]);
        ig_driver.cuCtxPopCurrent_v2(&before);
        ig_driver.cuDevicePrimaryCtxRelease_v2(model->device);
    }
    pthread_mutex_destroy(&model->lock);
    pthread_mutex_destroy(&model->turn);
    free(model);
}

INGOT_EXPORT int ingot_open_device(const void *weights, const ingot_image *images, int image_count, int number, ingot_model **out,
                                   char *message, size_t size)
{
    int status = ig_load_driver(message, size), count = 0, device = 0;
    if (status) return status;
    IG_CALL(cuDeviceGetCount, &count);
    if (number < 0 || number >= count) {
        if (message && size)
            snprintf(message, size, "There is no CUDA device %d.\n  why: this machine has %d\n  what to do: give the number of one, from 0 on", number, count);
        return INGOT_DEVICE;
    }
    IG_CALL(cuDeviceGet, &device, number);
    const ingot_image *image = 0;
    status = ig_choose_image(images, image_count, device, &image, message, size);
    if (status) return status;
    ingot_model *const model = calloc(1, sizeof *model);
    if (!model) return INGOT_MEMORY;
    pthread_mutex_init(&model->lock, 0);
    pthread_mutex_init(&model->turn, 0);
    model->device = device;
    int result = ig_driver.cuDevicePrimaryCtxRetain(&model->context, device);
    if (result) model->context = 0;
    else {
        result = ig_driver.cuCtxPushCurrent_v2(model->context);
        if (!result) {
            ig_cu_context before;
            status = ig_open_in_context(model, weights, image, device, message, size);
            ig_driver.cuCtxPopCurrent_v2(&before);
        }
    }
    if (result) status = ig_driver_failure("cuDevicePrimaryCtxRetain", result, message, size);
    if (status) ingot_close(model);
    else *out = model;
    return status;
}

INGOT_EXPORT void ingot_seed(ingot_model *model, uint64_t seed)
{
    pthread_mutex_lock(&model->lock);
    model->seed = seed;
    model->draws = 0;
    pthread_mutex_unlock(&model->lock);
}

/* ---- running */

/* The sizes of a call into `n`: those that its inputs bind. */
static int ig_prepare(const ingot_tensor *inputs, int64_t *n, char *message, size_t size)
{
    for (int s = 0; ig_size_inputs[s] >= 0; ++s)
        if (inputs[ig_size_inputs[s]].device)
            return ig_tell(INGOT_INVALID, message, size, "An input that is a size must lie on the host.");
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

static int ig_check_places(const ingot_model *model, const ingot_tensor *tensors, int count, const char *what, char *message, size_t size)
{
    for (int t = 0; t < count; ++t)
        if (tensors[t].device && tensors[t].device != model->device + 1) {
            if (message && size)
                snprintf(message, size, "%s %d lies on the device %d, but the model is on %d", what, t, tensors[t].device - 1, model->device);
            return 0;
        }
    return 1;
}

/* One call on the run's stream: what goes before it, its kernels, what goes behind it. Whether to wait for its end. */
static int ig_run_once(ingot_model *model, ig_run *run, const ingot_tensor *inputs, const ingot_tensor *outputs, int64_t *n)
{
    ig_wait_for_end(run, &run->done);
    if (IG_STATEFUL) ig_wait_for_end(run, &model->done);
    ig_stage(run, inputs, outputs);
    ig_note_call(run, n);
    ig_graph *const known = ig_known_graph(run);
    if (known) ig_launch_graph(run, known);
    else {
        if (!run->status) ig_model_run(model, run, n);
        ig_launch_all(run);
    }
    const int to_host = ig_unstage(run, inputs, outputs);
    ig_free_blocks(run);
    ig_set_end(&run->done, run->stream);
    if (IG_STATEFUL) ig_set_end(&model->done, run->stream);
    return to_host;
}

static void ig_explain(const ig_run *run, char *message, size_t size)
{
    static const char *const why[] = {"", "", "", "an index is out of range: ", "out of memory: ", "division by zero: ", ""};
    if (run->site == -2 || !message || !size) return;
    snprintf(message, size, "%s%s", why[run->status], run->site < 0 ? "" : ig_sites[run->site]);
}

/* Whether a tensor is dense and of these sizes: then nothing has to be said about it. */
static int ig_is_plain(const ingot_tensor *t, int dtype, int rank, const int64_t *sizes)
{
    if (t->dtype != dtype || t->rank != rank || t->strides) return 0;
    for (int d = 0; d < rank; ++d)
        if (t->shape[d] != sizes[d]) return 0;
    return 1;
}

static int ig_execute(ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, int own, ig_cu_stream stream,
                      double *seconds, char *message, size_t size)
{
    int64_t n[IG_SYMBOLS + 1] = {0}, sizes[IG_SIZES] = {0};
    int status = ig_prepare(inputs, n, message, size);
    if (status) return status;
    ig_shapes(n, sizes);
    for (int o = 0, at = 0; o < IG_OUTPUTS; at += ig_ranks[o++]) {
        if (ig_is_plain(&outputs[o], ig_dtypes[o], ig_ranks[o], sizes + at)) continue;
        char name[32];
        snprintf(name, sizeof name, "output %d", o);
        if (!ig_input(&outputs[o], name, ig_dtypes[o], ig_ranks[o], message, size)) return INGOT_INVALID;
        for (int d = 0; d < ig_ranks[o]; ++d)
            if (!ig_dim(&outputs[o], name, d, sizes[at + d], message, size)) return INGOT_INVALID;
    }
    if (!ig_check_places(model, inputs, IG_INPUTS, "input", message, size)) return INGOT_INVALID;
    if (!ig_check_places(model, outputs, IG_OUTPUTS, "output", message, size)) return INGOT_INVALID;
    ig_cu_context before = 0;
    IG_CALL(cuCtxGetCurrent, &before);
    const int is_entered = before != model->context;
    if (is_entered) IG_CALL(cuCtxPushCurrent_v2, model->context); /* and off again: the caller's stays as it was */
    if (IG_STATEFUL) pthread_mutex_lock(&model->turn);
    ig_run *run = 0;
    status = ig_take_run(model, own, stream, &run, message, size);
    if (!status) {
        run->seconds = seconds;
        ig_read_status(run); /* of an earlier call, which was not waited for */
        if (!run->status) {
            const int to_host = ig_run_once(model, run, inputs, outputs, n);
            if (own || to_host || run->status) IG_TRY(run, cuStreamSynchronize, run->stream);
            if (own || to_host) ig_read_status(run);
        }
        status = run->status;
        if (status) ig_explain(run, message, size);
        ig_give_run(model, run);
    }
    if (IG_STATEFUL) pthread_mutex_unlock(&model->turn);
    if (is_entered) ig_driver.cuCtxPopCurrent_v2(&before);
    return status;
}

INGOT_EXPORT int ingot_run(
    ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, char *message, size_t size)
{
    return ig_execute(model, inputs, outputs, 1, 0, 0, message, size);
}

INGOT_EXPORT int ingot_enqueue(ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, void *stream,
                               char *message, size_t size)
{
    return ig_execute(model, inputs, outputs, 0, (ig_cu_stream)stream, 0, message, size);
}

INGOT_EXPORT int ingot_profile(
    ingot_model *model, const ingot_tensor *inputs, const ingot_tensor *outputs, double *seconds, char *message, size_t size)
{
    return ig_execute(model, inputs, outputs, 1, 0, seconds, message, size);
}
