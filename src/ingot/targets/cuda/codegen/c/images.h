/* The code of the kernels: the image for a device, its modules, and the functions in them. */

typedef struct {
    const char *architecture;
    const void *data;
    size_t size;
} ingot_image;

static int ig_choose_image(const ingot_image *images, int count, int device, const ingot_image **chosen, char *message, size_t size)
{
    int major = 0, minor = 0, best = 0;
    IG_CALL(cuDeviceGetAttribute, &major, IG_ATTRIBUTE_MAJOR, device);
    IG_CALL(cuDeviceGetAttribute, &minor, IG_ATTRIBUTE_MINOR, device);
    for (int i = 0; i < count; ++i) {
        const int rank = ig_rank_image(images[i].architecture, major, minor);
        if (rank <= best) continue;
        best = rank;
        *chosen = &images[i];
    }
    if (best) return INGOT_OK;
    char name[128] = "", have[256] = "";
    ig_driver.cuDeviceGetName(name, sizeof name, device);
    for (int i = 0; i < count; ++i)
        snprintf(have + strlen(have), sizeof have - strlen(have), "%s%s", i ? ", " : "", images[i].architecture);
    if (message && size)
        snprintf(message, size, "The model has no code for this GPU.\n  why: %s is of the architecture sm_%d%d; there is code for %s\n"
                 "  what to do: compile the model for it: isa=\"sm_%d%d\", or isa=\"ptx\" for all that are newer",
                 *name ? name : "it", major, minor, *have ? have : "none", major, minor);
    return INGOT_DEVICE;
}

/* ---- an image: one module, or several behind a table (image_parts.py) */

static int ig_tell_damage(const ingot_image *image, const char *why, char *message, size_t size)
{
    if (message && size)
        snprintf(message, size, "The model's code for %s is damaged.\n  why: %s\n  what to do: compile the model again, or copy its file again",
                 image->architecture, why);
    return INGOT_DEVICE;
}

/* Why a part cannot be given to the driver, which does not know its size: a cubin ends where its tables of sections and
   segments end at the latest, text where a 0 is. */
static const char *ig_part_problem(const unsigned char *part, size_t size)
{
    enum { HEADER = 64 };
    if (!size) return "a part is empty";
    if (memcmp(part, "\177ELF", size < 4 ? size : 4)) return part[size - 1] ? "a part that is text has no end" : 0;
    uint64_t at[2];
    uint16_t counts[4]; /* bytes and number of segments, of sections */
    if (size < HEADER) return "a part ends within its header";
    memcpy(at, part + 32, sizeof at);
    memcpy(counts, part + 54, sizeof counts);
    for (int t = 0; t < 2; ++t)
        if (at[t] > size || (uint64_t)counts[2 * t] * counts[2 * t + 1] > size - at[t]) return "a part ends before its tables";
    return 0;
}

/* Where the modules of an image lie. */
static int ig_find_parts(const ingot_image *image, const void **parts, char *message, size_t size)
{
    enum { HEAD = 16, ENTRY = 16, ALIGNMENT = 64 };
    const unsigned char *const bytes = image->data;
    const char *why = 0;
    uint64_t count = 1;
    if (image->size < HEAD || memcmp(bytes, "IGPARTS1", 8)) {
        if (IG_IMAGE_PARTS != 1) return ig_tell_damage(image, "it has no table of its parts", message, size);
        parts[0] = bytes; /* the driver says what is wrong with it */
        return INGOT_OK;
    }
    memcpy(&count, bytes + 8, sizeof count);
    if (count != IG_IMAGE_PARTS) return ig_tell_damage(image, "it has another number of parts than the model's library knows", message, size);
    uint64_t end = HEAD + ENTRY * count;
    if (end > image->size) return ig_tell_damage(image, "its table of parts is cut off", message, size);
    for (uint64_t p = 0; p < count && !why; ++p) {
        uint64_t place[2];
        memcpy(place, bytes + HEAD + ENTRY * p, sizeof place);
        if (place[0] < end || place[0] > image->size || place[1] > image->size - place[0]) why = "a part lies beyond its end, or in another";
        else if (place[0] % ALIGNMENT) why = "a part does not begin where parts begin";
        else why = ig_part_problem(bytes + place[0], place[1]);
        parts[p] = bytes + place[0];
        end = place[0] + place[1];
    }
    return why ? ig_tell_damage(image, why, message, size) : INGOT_OK;
}

static int ig_load_image(ingot_model *model, const ingot_image *image, char *message, size_t size)
{
    const void *parts[IG_IMAGE_PARTS];
    const int status = ig_find_parts(image, parts, message, size);
    if (status) return status;
    int result = 0;
    for (int p = 0; p < IG_IMAGE_PARTS && !result; ++p) {
        result = ig_driver.cuModuleLoadData(&model->modules[p], parts[p]);
        if (result) model->modules[p] = 0;
    }
    if (result == IG_CUDA_OUT_OF_MEMORY) return ig_driver_failure("cuModuleLoadData", result, message, size);
    if (result) {
        const char *why = 0;
        ig_driver.cuGetErrorString(result, &why);
        const int is_old = ig_driver.version < IG_CUDA_VERSION;
        if (message && size)
            snprintf(message, size, "The GPU's driver cannot load the model's code for %s.\n  why: %s (%d); the driver supports CUDA %d.%d, the code is of CUDA %d.%d\n"
                     "  what to do: %s", image->architecture, why ? why : "an error without a name", result, ig_driver.version / 1000,
                     ig_driver.version % 1000 / 10, IG_CUDA_VERSION / 1000, IG_CUDA_VERSION % 1000 / 10,
                     is_old ? "install a newer NVIDIA driver" : "compile the model again");
        return INGOT_DEVICE;
    }
    return INGOT_OK;
}

static int ig_find_kernels(ingot_model *model, int device, char *message, size_t size)
{
    int most = 0;
    IG_CALL(cuDeviceGetAttribute, &most, IG_ATTRIBUTE_SHARED_LIMIT, device);
    for (int k = 0; k < IG_KERNELS; ++k) {
        char name[16];
        int own = 0;
        snprintf(name, sizeof name, "k%d", k);
        IG_CALL(cuModuleGetFunction, &model->functions[k], model->modules[ig_kernel_parts[k]], name);
        const int needed = !model->is_hopper && ig_plain_shared[k] >= 0 ? ig_plain_shared[k] : ig_kernel_shared[k];
        if (needed >= 0 && needed <= 48 << 10) continue;
        IG_CALL(cuFuncGetAttribute, &own, IG_FUNCTION_STATIC_SHARED, model->functions[k]);
        const int asked = needed < 0 ? most - own : needed;
        if (asked > most - own) {
            if (message && size)
                snprintf(message, size, "A kernel of the model needs more shared memory than this GPU has.\n  why: it needs %d bytes, and there are %d\n"
                         "  what to do: compile the model for this GPU", asked + own, most);
            return INGOT_DEVICE;
        }
        IG_CALL(cuFuncSetAttribute, model->functions[k], IG_FUNCTION_DYNAMIC_SHARED, asked);
    }
    return INGOT_OK;
}
