/* Preloaded into the processes that judge programs: fresh memory is full of NaN, so that whoever reads memory that
   nothing wrote is seen. Bytes of 0xff are NaN in every float format. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

void *__libc_malloc(size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static void *fill(void *memory, size_t size)
{
    return memory ? memset(memory, 0xff, size) : NULL;
}

void *malloc(size_t size) { return fill(__libc_malloc(size), size); }
void *memalign(size_t alignment, size_t size) { return fill(__libc_memalign(alignment, size), size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    void *const fresh = memalign(alignment, size);
    if (!fresh) return ENOMEM;
    *memory = fresh;
    return 0;
}
