enum { INGOT_OK, INGOT_INVALID, INGOT_ASSERTION, INGOT_INDEX, INGOT_MEMORY, INGOT_ZERO_DIVISION, INGOT_DEVICE };

typedef struct {
    void *data;
    int32_t dtype;
    int32_t rank;
    const int64_t *shape;
    const int64_t *strides;
    int32_t device, reserved;
} ingot_tensor;

typedef struct {
    int32_t abi, inputs, outputs, symbols;
    const char *isa;
    const char *weights;
    uint64_t weights_size;
} ingot_info;
