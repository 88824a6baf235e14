/* What C kernels of users are given: tensors, and numbers as the operator's schema has them. */
enum { INGOT_BOOL, INGOT_UINT8, INGOT_INT8, INGOT_INT16, INGOT_INT32, INGOT_INT64, INGOT_FLOAT16, INGOT_BFLOAT16,
       INGOT_FLOAT32, INGOT_FLOAT64, INGOT_UINT16, INGOT_UINT32, INGOT_UINT64 };
typedef union {
    int64_t i; /* of an int or a bool */
    double f;  /* of a float */
} ingot_number;

#define IG_C_KERNEL(function) \
    __attribute__((visibility("hidden"))) int function(const ingot_tensor *, const ingot_tensor *, const ingot_number *)
