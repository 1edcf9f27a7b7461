/*
 * The compiled kernel `quiver._kernel`: functions that replace many interpreter steps by one call.
 *
 * Every function has a twin in Python, which is the reference. The kernel contains no format rules, recovery
 * decisions or I/O policy. A length that was read from a file is checked before it is used.
 */
#ifndef QUIVER_KERNEL_H
#define QUIVER_KERNEL_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* Changes with every change of a signature; primitives/kernel.py ignores a kernel with another number. */
#define KERNEL_API 10

/* Below this many bytes a call keeps the GIL: to get it back can take a switch interval of 5 ms. */
#define GIL_BYTES_MIN (64 * 1024)

/* Do `work` without the GIL if that is worthwhile. */
#define WITHOUT_GIL_IF(is_long, work)                                                                                  \
    do {                                                                                                               \
        PyThreadState *suspended = (is_long) ? PyEval_SaveThread() : NULL;                                             \
        work;                                                                                                          \
        if (suspended != NULL)                                                                                         \
            PyEval_RestoreThread(suspended);                                                                           \
    } while (0)

/* A reflected CRC of 32 or 64 bits. Create it with crc_init. */
typedef struct {
    uint64_t table[8][256];   /* the CRC of a byte, followed by 0 to 7 zero bytes */
    uint64_t fold_2048[2];    /* multipliers that move 16 bytes over 256 bytes */
    uint64_t fold_512[2];     /* ... over 64 bytes */
    uint64_t fold_128[2];     /* ... and over 16 bytes */
    uint64_t mask;            /* all bits of the CRC */
} Crc;

extern Crc CRC32, CRC32C, CRC64_NVME;

/* Return whether this processor has the instructions that the kernel needs. */
int crc_is_supported(void);
void crc_init_all(void);

/* Create the names of attributes; -1 with an exception on failure. */
int entry_init(void);
/* Create the type of the pieces; -1 with an exception on failure. */
int piece_init(void);

/* Return an object for `size` bytes at `bytes`, which are in the memory of the memoryview `region`. */
PyObject *piece_new(PyObject *region, uint8_t *bytes, size_t size);

/* Create the types of bundles.c and add them to the module; -1 with an exception on failure. */
int bundles_init(PyObject *module);

/* Return the CRC of `size` bytes, continued from `value`. */
uint64_t crc_update(const Crc *crc, const uint8_t *data, size_t size, uint64_t value);

/* The multiplier that appends `bytes` zero bytes. Begin with zeros. */
typedef struct {
    uint64_t bytes, multiplier;
} Crc64Shift;

/* Return the CRC-64/NVME of two messages joined, from their own; `shift` remembers the last length. */
uint64_t crc64_join(Crc64Shift *shift, uint64_t first, uint64_t second, uint64_t second_bytes);

static inline uint32_t load_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t load_u64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Create bytes to be written by the caller: `content` is where. */
static inline PyObject *new_bytes(size_t size, uint8_t **content) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes != NULL)
        *content = (uint8_t *)PyBytes_AsString(bytes);
    return bytes;
}

/* The functions of the module. */
#define KERNEL_FUNCTION(name) PyObject *kernel_##name(PyObject *module, PyObject *args)
KERNEL_FUNCTION(copy_message); KERNEL_FUNCTION(crc32); KERNEL_FUNCTION(crc32c);
KERNEL_FUNCTION(crc64_nvme); KERNEL_FUNCTION(gather_bytes); KERNEL_FUNCTION(gather_numbers);
KERNEL_FUNCTION(nested_items); KERNEL_FUNCTION(pack_texts); KERNEL_FUNCTION(pwritev);
KERNEL_FUNCTION(row_check); KERNEL_FUNCTION(scan_records); KERNEL_FUNCTION(split_key_values);
KERNEL_FUNCTION(write_entry);

#endif
