#define INF_F32 (__builtin_inff())
#define INF_F64 (__builtin_inf())
#define NAN_F32 (__builtin_nanf(""))
#define NAN_F64 (__builtin_nan(""))

/* What a model may do without: no compiler is to warn of it. */
#define IG_OPTIONAL __attribute__((unused)) static inline
