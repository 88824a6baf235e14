IG_OPTIONAL int ig_say(char *message, size_t size, const char *name, const char *what, int64_t found, int64_t expected)
{
    if (message && size)
        snprintf(message, size, "%s: %s is %lld, but was compiled for %lld", name, what, (long long)found, (long long)expected);
    return 0;
}

IG_OPTIONAL int ig_input(const ingot_tensor *t, const char *name, int dtype, int rank, char *message, size_t size)
{
    if (t->dtype != dtype) return ig_say(message, size, name, "the dtype code", t->dtype, dtype);
    if (t->rank != rank) return ig_say(message, size, name, "the rank", t->rank, rank);
    if (IG_HOST_ONLY && t->device) return ig_say(message, size, name, "the device", t->device, 0);
    if (t->strides) {
        int64_t step = 1;
        for (int d = rank - 1; d >= 0; --d) {
            if (t->shape[d] != 1 && t->strides[d] != step) return ig_say(message, size, name, "a stride", t->strides[d], step);
            step *= t->shape[d];
        }
    }
    return 1;
}

IG_OPTIONAL int ig_dim(const ingot_tensor *t, const char *name, int dim, int64_t expected, char *message, size_t size)
{
    if (t->shape[dim] == expected) return 1;
    char what[32];
    snprintf(what, sizeof what, "the size of dim %d", dim);
    return ig_say(message, size, name, what, t->shape[dim], expected);
}

IG_OPTIONAL int ig_range(const char *name, int64_t found, int64_t low, int64_t high, char *message, size_t size)
{
    if (found >= low && found <= high) return 1;
    if (message && size)
        snprintf(message, size, "%s is %lld, but was compiled for %lld to %lld", name, (long long)found, (long long)low, (long long)high);
    return 0;
}
