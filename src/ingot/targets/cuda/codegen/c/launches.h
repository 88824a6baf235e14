/* A run's launches: recorded one after another, then sent to the device as one graph. */

typedef struct {
    int kernel, number; /* number: which of the module's launches, for the profiler */
    unsigned grid[3], block, shared;
    int first, count; /* its arguments: words of 8 bytes, those of maps and of a table before the others, the context's four behind */
} ig_launch;

typedef struct {
    ig_launch *launches;
    uint64_t *words;
    int count, room, word_count, word_room;
} ig_launch_list;

/* All that a run's launches depend on, where it draws no random numbers: calls that agree in it have the same ones. */
typedef struct {
    int64_t sizes[IG_SYMBOLS + 1];
    ig_address inputs[IG_INPUTS + 1], outputs[IG_OUTPUTS + 1], arena, scratch;
} ig_call;

enum { IG_GRAPHS = 8, IG_ALIKE = 4, IG_SEEN = 32, IG_GRAPH_LEAST = 2, IG_CONTEXT_WORDS = 4, IG_MAP_WORDS = 16 };

/* What a launch's parameters point at besides its words: maps of tensors as the driver makes them. */
typedef struct {
    _Alignas(64) unsigned char maps[IG_MOST_MAPS + 1][128];
    void *parameters[IG_MOST_MAPS + IG_MOST_WORDS + 1];
} ig_arguments;

/* What a call launches, to be launched again: a graph, or a single launch with its arguments as the driver takes them. */
typedef struct {
    ig_launch_list list; /* as the graph has it now */
    ig_call call; /* the call that it was made or updated for */
    int is_known; /* whether that call determines all of it */
    ig_cu_graph graph;
    ig_cu_graph_exec exec;
    ig_cu_node *nodes;
    ig_arguments *single; /* which point into the list's words */
    uint64_t used; /* when: the one that was used longest ago makes room */
} ig_graph;

typedef struct ig_block {
    struct ig_block *next;
    ig_address memory;
} ig_block;

/* Where the last use of something ends: an event behind it on its stream. On the default stream, which is always there,
   it is recorded on request: what came there later is then waited for as well. */
typedef struct {
    ig_cu_event event;
    ig_cu_stream stream;
    int was_used, is_recorded;
} ig_end;

typedef struct ig_run {
    struct ig_run *next;
    struct ingot_model *model;
    ig_cu_stream own, stream; /* its own, the one of this call */
    ig_end done; /* the call before */
    ig_cu_event begin, end;
    volatile unsigned *status_word; /* pinned: what kernels report, and behind it a value that they compute */
    volatile int64_t *value;
    ig_address status_address, value_address;
    ig_address arena, scratch, staging;
    ig_address barrier; /* a word at which blocks of a kernel wait for each other */
    int64_t arena_size, scratch_size, staging_size;
    ig_block *blocks; /* what was allocated on the way */
    ig_address inputs[IG_INPUTS + 1], outputs[IG_OUTPUTS + 1];
    ig_call call;
    uint64_t seed, draw;
    ig_launch_list list;
    ig_graph graphs[IG_GRAPHS];
    uint64_t seen[IG_SEEN], called[IG_SEEN], calls;
    int status, site;
    double *seconds; /* of each launch, when profiling */
    char *message;
    size_t message_size;
} ig_run;

typedef struct ingot_model {
    ig_cu_context context;
    ig_cu_module modules[IG_IMAGE_PARTS];
    ig_cu_function functions[IG_KERNELS + 1];
    int device, run_count;
    int processors; /* blocks of a kernel that surely run at the same time */
    int overlaps; /* whether a kernel that waits for the one before it may begin earlier */
    int is_hopper; /* whether kernels have the text that uses maps of tensors and clusters */
    ig_address weights;
    ig_run *idle;
    pthread_mutex_t lock, turn;
    ig_end done; /* the last call that used the state */
    uint64_t seed, draws;
} ingot_model;

IG_OPTIONAL void ig_fail_run(ig_run *run, int status, int site)
{
    if (run->status) return;
    run->status = status;
    run->site = site;
}

/* The sentence is written where the driver failed: `site` is -2. */
IG_OPTIONAL void ig_fail_driver(ig_run *run, const char *what, int result)
{
    if (!run->status) ig_fail_run(run, ig_driver_failure(what, result, run->message, run->message_size), -2);
}

#define IG_TRY(run, name, ...) \
    do { \
        const int ig_result = ig_driver.name(__VA_ARGS__); \
        if (ig_result) ig_fail_driver(run, #name, ig_result); \
    } while (0)

/* Room for `more` behind `count` elements. */
static void *ig_grow(void *memory, int count, int more, int *room, size_t element)
{
    if (count + more <= *room) return memory;
    const int wanted = 2 * (count + more);
    void *const grown = realloc(memory, (size_t)wanted * element);
    if (grown) *room = wanted;
    return grown;
}

static void ig_free_list(ig_launch_list *list)
{
    free(list->launches);
    free(list->words);
    memset(list, 0, sizeof *list);
}

/* A map: address, format (dtype, rank, swizzle, and for each dim how far apart the elements of a box are, less one, 8 bits
   each), 5 sizes, 4 steps in bytes, 5 spans of a box. */
IG_OPTIONAL int ig_encode_map(const uint64_t *words, void *map)
{
    enum { NOT_SUPPORTED = 801, WIDE_READS = 3 };
    const unsigned format = (unsigned)words[1];
    unsigned box[5], every[5];
    for (int d = 0; d < 5; ++d) box[d] = (unsigned)words[11 + d], every[d] = 1 + (unsigned)(words[1] >> (24 + 8 * d) & 255);
    if (!ig_driver.cuTensorMapEncodeTiled) return NOT_SUPPORTED;
    return ig_driver.cuTensorMapEncodeTiled(map, (int)(format & 255), format >> 8 & 255, (void *)(uintptr_t)words[0], words + 2,
                                            words + 7, box, every, 0, (int)(format >> 16 & 255), WIDE_READS, 0);
}

/* The addresses of a launch's arguments, as the driver takes them. Returns what the driver said. */
static int ig_gather_arguments(const ig_run *run, const ig_launch_list *list, const ig_launch *launch, ig_arguments *made)
{
    const int maps = ig_kernel_maps[launch->kernel], table = ig_kernel_tables[launch->kernel], before = maps * IG_MAP_WORDS + table;
    const int plain = launch->count - IG_CONTEXT_WORDS - before;
    uint64_t *const words = list->words + launch->first;
    for (int m = 0; m < maps; ++m) {
        const int result = run->model->is_hopper ? ig_encode_map(words + m * IG_MAP_WORDS, made->maps[m]) : 0;
        if (result) return result;
        made->parameters[m] = made->maps[m];
    }
    if (table) made->parameters[maps] = &words[maps * IG_MAP_WORDS];
    for (int w = 0; w <= plain; ++w) made->parameters[maps + (table > 0) + w] = &words[before + w];
    return 0;
}

static void ig_launch_kernel(ig_run *run, const ig_launch *launch, ig_arguments *made)
{
    const ig_cu_function function = run->model->functions[launch->kernel];
    const unsigned *const grid = launch->grid;
    if (ig_kernel_together[launch->kernel])
        IG_TRY(run, cuLaunchCooperativeKernel, function, grid[0], grid[1], grid[2], launch->block, 1, 1, launch->shared,
               run->stream, made->parameters);
    else
        IG_TRY(run, cuLaunchKernel, function, grid[0], grid[1], grid[2], launch->block, 1, 1, launch->shared, run->stream,
               made->parameters, 0);
}

static void ig_launch_now(ig_run *run, const ig_launch_list *list, const ig_launch *launch)
{
    ig_arguments made;
    const int result = ig_gather_arguments(run, list, launch, &made);
    if (result) {
        ig_fail_driver(run, "cuTensorMapEncodeTiled", result);
        return;
    }
    if (run->seconds) IG_TRY(run, cuEventRecord, run->begin, run->stream);
    ig_launch_kernel(run, launch, &made);
    if (run->seconds && !run->status) {
        float milliseconds = 0;
        IG_TRY(run, cuEventRecord, run->end, run->stream);
        IG_TRY(run, cuEventSynchronize, run->end);
        if (!run->status) IG_TRY(run, cuEventElapsedTime, &milliseconds, run->begin, run->end);
        run->seconds[launch->number] += 1e-3 * milliseconds;
    }
}

/* Records a launch; where steps wait for values of the device, does it. An empty grid is none. */
__attribute__((noinline, unused)) static void ig_add_launch(
    ig_run *run, int number, int kernel, int site, const int64_t *grid, int64_t block, int64_t shared, int draws,
    const uint64_t *words, int count)
{
    if (run->status || grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return;
    if (grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535) {
        ig_fail_run(run, INGOT_MEMORY, site);
        return;
    }
    if (!run->model->is_hopper && ig_plain_shared[kernel] >= 0) shared = ig_plain_shared[kernel];
    ig_launch_list *const list = &run->list;
    if (IG_AT_ONCE) list->count = list->word_count = 0;
    ig_launch *const launches = ig_grow(list->launches, list->count, 1, &list->room, sizeof *launches);
    if (launches) list->launches = launches;
    uint64_t *const all = ig_grow(list->words, list->word_count, count + IG_CONTEXT_WORDS, &list->word_room, sizeof *all);
    if (all) list->words = all;
    if (!launches || !all) {
        ig_fail_run(run, INGOT_MEMORY, -1);
        return;
    }
    ig_launch *const launch = &launches[list->count++];
    memset(launch, 0, sizeof *launch); /* lists are compared as bytes */
    const int64_t along = ig_kernel_together[kernel] && grid[0] > run->model->processors ? run->model->processors : grid[0];
    *launch = (ig_launch){kernel, number, {(unsigned)along, (unsigned)grid[1], (unsigned)grid[2]}, (unsigned)block,
                          (unsigned)shared, list->word_count, count + IG_CONTEXT_WORDS};
    uint64_t *const to = all + list->word_count;
    memcpy(to, words, (size_t)count * sizeof *to);
    to[count] = run->status_address;
    to[count + 1] = (uint64_t)(unsigned)site;
    to[count + 2] = draws ? run->seed : 0;
    to[count + 3] = draws ? run->draw : 0;
    list->word_count += count + IG_CONTEXT_WORDS;
    if (IG_AT_ONCE) ig_launch_now(run, list, launch);
}

#define LAUNCH(number, kernel, site, x, y, z, block, shared, draws, ...) \
    ig_add_launch(run, number, kernel, site, (const int64_t[]){x, y, z}, block, shared, draws, \
                  (const uint64_t[]){__VA_ARGS__}, (int)(sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))

/* ---- graphs */

static void ig_free_graph(ig_graph *graph)
{
    if (graph->exec) ig_driver.cuGraphExecDestroy(graph->exec);
    if (graph->graph) ig_driver.cuGraphDestroy(graph->graph);
    free(graph->nodes);
    free(graph->single);
    ig_free_list(&graph->list);
    memset(graph, 0, sizeof *graph);
}

static int ig_same_launches(const ig_launch_list *a, const ig_launch_list *b)
{
    return a->count == b->count && a->word_count == b->word_count &&
           !memcmp(a->launches, b->launches, (size_t)a->count * sizeof *a->launches);
}

/* A launch as a node of a graph has it. Returns whether the driver made its arguments. */
static int ig_make_node(const ig_run *run, const ig_launch_list *list, const ig_launch *launch, ig_arguments *arguments, ig_node_parameters *node)
{
    *node = (ig_node_parameters){run->model->functions[launch->kernel], {launch->grid[0], launch->grid[1], launch->grid[2]},
                                 {launch->block, 1, 1}, launch->shared, arguments->parameters, 0};
    return !ig_gather_arguments(run, list, launch, arguments);
}

static int ig_copy_list(const ig_launch_list *list, ig_launch_list *copy)
{
    *copy = (ig_launch_list){malloc((size_t)list->count * sizeof *list->launches), malloc((size_t)list->word_count * sizeof *list->words),
                             list->count, list->count, list->word_count, list->word_count};
    if (!copy->launches || !copy->words) return 0;
    memcpy(copy->launches, list->launches, (size_t)list->count * sizeof *list->launches);
    memcpy(copy->words, list->words, (size_t)list->word_count * sizeof *list->words);
    return 1;
}

/* Builds a CUDA graph whose nodes are the launches of a run, in order. Returns 0 where the driver refuses. */
static int ig_build_graph(ig_run *run, ig_graph *graph)
{
    const ig_launch_list *const list = &run->list;
    ig_arguments arguments;
    ig_node_parameters node;
    ig_free_graph(graph);
    graph->nodes = malloc((size_t)list->count * sizeof *graph->nodes);
    if (!graph->nodes || ig_driver.cuGraphCreate(&graph->graph, 0)) return 0;
    for (int l = 0; l < list->count; ++l) {
        static const ig_edge overlapped = {.from_port = IG_PORT_PROGRAMMATIC, .type = IG_EDGE_PROGRAMMATIC};
        if (!ig_make_node(run, list, &list->launches[l], &arguments, &node)) return 0;
        ig_cu_node *const before = l ? &graph->nodes[l - 1] : 0, *const now = &graph->nodes[l];
        const int overlaps = before && run->model->overlaps && ig_kernel_waits[list->launches[l].kernel];
        if (ig_driver.cuGraphAddKernelNode(now, graph->graph, overlaps ? 0 : before, before && !overlaps, &node)) return 0;
        static const ig_attribute_value together = {.is_cooperative = 1};
        if (ig_kernel_together[list->launches[l].kernel] && ig_driver.cuGraphKernelNodeSetAttribute(*now, IG_ATTRIBUTE_COOPERATIVE, &together)) return 0;
        if (overlaps && ig_driver.cuGraphAddDependencies_v2(graph->graph, before, now, &overlapped, 1)) return 0;
    }
    if (ig_driver.cuGraphInstantiateWithFlags(&graph->exec, graph->graph, 0)) return 0;
    return ig_copy_list(list, &graph->list);
}

/* Gives the graph this run's arguments: the nodes whose arguments differ get theirs. */
static int ig_update_graph(ig_run *run, ig_graph *graph)
{
    const ig_launch_list *const list = &run->list;
    ig_arguments arguments;
    ig_node_parameters node;
    for (int l = 0; l < list->count; ++l) {
        const ig_launch *const launch = &list->launches[l];
        uint64_t *const known = graph->list.words + launch->first;
        const size_t bytes = (size_t)launch->count * sizeof *known;
        if (!memcmp(known, list->words + launch->first, bytes)) continue;
        if (!ig_make_node(run, list, launch, &arguments, &node)) return 0;
        if (ig_driver.cuGraphExecKernelNodeSetParams(graph->exec, graph->nodes[l], &node)) return 0;
        memcpy(known, list->words + launch->first, bytes);
    }
    return 1;
}

/* Whether launches like these came before: only then a graph of them is worth its making, where sizes differ. */
static int ig_was_seen(ig_run *run)
{
    const ig_launch_list *const list = &run->list;
    uint64_t hash = 0xcbf29ce484222325u;
    const unsigned char *const bytes = (const unsigned char *)list->launches;
    for (size_t b = 0; b < (size_t)list->count * sizeof *list->launches; ++b) hash = (hash ^ bytes[b]) * 0x100000001b3u;
    for (int s = 0; s < IG_SEEN; ++s)
        if (run->seen[s] == hash) return 1;
    run->seen[run->calls % IG_SEEN] = hash;
    return 0;
}

/* Whether a call that agrees with this one in all that launches depend on came before; notes that this one did. */
static int ig_was_called(ig_run *run)
{
    uint64_t words[sizeof run->call / sizeof(uint64_t)], hash = 0xcbf29ce484222325u;
    if (IG_DRAWS || run->blocks) return 0;
    memcpy(words, &run->call, sizeof words);
    for (size_t w = 0; w < sizeof words / sizeof *words; ++w) hash = (hash ^ words[w] ^ hash >> 32) * 0x100000001b3u;
    for (int s = 0; s < IG_SEEN; ++s)
        if (run->called[s] == hash) return 1;
    run->called[run->calls % IG_SEEN] = hash;
    return 0;
}

/* A graph with the launches of this run: one that has others is updated, unless calls with these addresses come again,
   as where two results take turns: such a call gets a graph of its own, if there is room. */
static ig_graph *ig_find_graph(ig_run *run)
{
    ig_graph *oldest = &run->graphs[0], *same = 0;
    int alike = 0;
    for (int g = 0; g < IG_GRAPHS; ++g) {
        ig_graph *const graph = &run->graphs[g];
        if (graph->used < oldest->used) oldest = graph;
        if (!graph->exec || !ig_same_launches(&graph->list, &run->list)) continue;
        ++alike;
        if (!same || graph->used < same->used) same = graph;
    }
    if (!same && IG_SYMBOLS && !ig_was_seen(run)) return 0;
    const int is_repeated = ig_was_called(run);
    if (same && (!is_repeated || oldest->exec || alike >= IG_ALIKE)) {
        if (ig_update_graph(run, same)) return same;
        oldest = same;
    }
    if (ig_build_graph(run, oldest)) return oldest;
    ig_free_graph(oldest);
    return 0;
}

/* Keeps the one launch of this call, with its maps, in the place of what was used longest ago: a call like it need not
   make them again. Returns 0 where there is no memory, or where the driver makes no map of it: the run has failed then. */
static ig_graph *ig_keep_single(ig_run *run)
{
    ig_graph *oldest = &run->graphs[0];
    for (int g = 1; g < IG_GRAPHS; ++g)
        if (run->graphs[g].used < oldest->used) oldest = &run->graphs[g];
    ig_launch_list *const kept = &oldest->list;
    if (oldest->single && ig_same_launches(kept, &run->list))
        memcpy(kept->words, run->list.words, (size_t)kept->word_count * sizeof *kept->words);
    else {
        ig_free_graph(oldest);
        oldest->single = aligned_alloc(64, (sizeof *oldest->single + 63) / 64 * 64);
        if (!oldest->single || !ig_copy_list(&run->list, kept)) {
            ig_free_graph(oldest);
            return 0;
        }
    }
    const int result = ig_gather_arguments(run, kept, kept->launches, oldest->single);
    if (!result) return oldest;
    ig_fail_driver(run, "cuTensorMapEncodeTiled", result);
    ig_free_graph(oldest);
    return 0;
}

/* Notes what this call's launches depend on. */
static void ig_note_call(ig_run *run, const int64_t *n)
{
    memcpy(run->call.sizes, n, sizeof run->call.sizes);
    memcpy(run->call.inputs, run->inputs, sizeof run->call.inputs);
    memcpy(run->call.outputs, run->outputs, sizeof run->call.outputs);
}

/* The graph that has the launches of this call already. */
static ig_graph *ig_known_graph(ig_run *run)
{
    if (IG_AT_ONCE || IG_DRAWS || run->status || run->seconds) return 0;
    run->call.arena = run->arena;
    run->call.scratch = run->scratch;
    for (int g = 0; g < IG_GRAPHS; ++g)
        if (run->graphs[g].is_known && !memcmp(&run->graphs[g].call, &run->call, sizeof run->call)) return &run->graphs[g];
    return 0;
}

static void ig_launch_graph(ig_run *run, ig_graph *graph)
{
    graph->used = ++run->calls;
    if (graph->single) ig_launch_kernel(run, graph->list.launches, graph->single);
    else IG_TRY(run, cuGraphLaunch, graph->exec, run->stream);
}

/* Sends what was recorded to the device. */
static void ig_launch_all(ig_run *run)
{
    ig_launch_list *const list = &run->list;
    if (IG_AT_ONCE || run->status) return;
    ++run->calls;
    run->call.arena = run->arena; /* which may have grown */
    run->call.scratch = run->scratch;
    ig_graph *graph = 0; /* none where each launch is timed */
    if (!run->seconds && list->count >= IG_GRAPH_LEAST) graph = ig_find_graph(run);
    if (!run->seconds && list->count == 1 && !IG_DRAWS && !run->blocks) graph = ig_keep_single(run);
    if (graph) {
        graph->call = run->call;
        graph->is_known = !run->blocks; /* which lie elsewhere next time */
        ig_launch_graph(run, graph);
        return;
    }
    for (int l = 0; l < list->count && !run->status; ++l) ig_launch_now(run, list, &list->launches[l]);
}
