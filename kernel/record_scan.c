/*
 * The scan over the records of an AOF2 segment. The twin is `_scan_batch_in_python` in quiver/aof/format/record.py,
 * whose module describes the bytes.
 */
#include "kernel.h"

#define HEAD_BYTES 24

/* From this length on, joining two checksums takes less time than a second pass over the payload. */
#define JOIN_BYTES_MIN 4096

typedef struct {
    size_t end;          /* the end of the last complete record */
    size_t last_offset;  /* its start */
    uint64_t last_timestamp;
    uint64_t crc64;      /* of all payloads, concatenated */
    uint64_t count;
    Crc64Shift shift;
} Scan;

/* Add the complete records from scan->end on, until one ends at or after `stop`. Every record ends within `limit`. */
static void scan_records(Scan *scan, const uint8_t *data, size_t limit, size_t stop) {
    while (scan->end < stop && scan->end <= limit && limit - scan->end >= HEAD_BYTES) {
        const uint8_t *head = data + scan->end;
        const uint8_t *payload = head + HEAD_BYTES;
        /* Read once: another process may write to the mapped file meanwhile. */
        size_t length = load_u32(head);
        if (!length || length > limit - scan->end - HEAD_BYTES)
            return;
        uint64_t found = crc_update(&CRC64_NVME, payload, length, 0);
        if ((uint32_t)(found >> 32 ^ found) != load_u32(head + 4))
            return;
        if (length >= JOIN_BYTES_MIN)
            scan->crc64 = crc64_join(&scan->shift, scan->crc64, found, length);
        else
            scan->crc64 = crc_update(&CRC64_NVME, payload, length, scan->crc64);
        scan->last_timestamp = load_u64(head + 8);
        scan->last_offset = scan->end;
        scan->end += HEAD_BYTES + length;
        scan->count++;
    }
}

/* scan_records(view, offset, limit, batch_bytes, crc64) -> (end, count, last_offset, last_timestamp, crc64) */
PyObject *kernel_scan_records(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer view;
    Py_ssize_t offset, limit, batch_bytes;
    unsigned long long crc64;
    if (!PyArg_ParseTuple(args, "y*nnnK", &view, &offset, &limit, &batch_bytes, &crc64))
        return NULL;
    if (offset < 0 || batch_bytes < 0 || limit > view.len) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "offset, limit or batch_bytes is outside of the view");
        return NULL;
    }
    Scan scan = {.end = (size_t)offset, .last_offset = (size_t)offset, .crc64 = crc64};
    if (offset < limit) {
        size_t size = (size_t)(limit - offset);
        size_t batch = (size_t)batch_bytes < size ? (size_t)batch_bytes : size;
        WITHOUT_GIL_IF(size >= GIL_BYTES_MIN,
                       scan_records(&scan, view.buf, (size_t)limit, (size_t)offset + batch));
    }
    PyBuffer_Release(&view);
    return Py_BuildValue("nKnKK", (Py_ssize_t)scan.end, (unsigned long long)scan.count, (Py_ssize_t)scan.last_offset,
                         (unsigned long long)scan.last_timestamp, (unsigned long long)scan.crc64);
}
