/* A run: one call of the model, with memory of its own, so that several callers never meet. */

#ifdef __linux__
#include <sys/mman.h>
#endif
