/*
 * The number, the times and the sizes of nested protobuf messages, without decoding the rest. The twin is in
 * quiver/otap/request_nesting.py, which knows the messages: the levels of nesting and the fields of the times are
 * arguments.
 */
#include "kernel.h"

#define LEVELS_MAX 8
#define TIMES_MAX 2
#define FIELDS 64 /* only fields with a smaller number can be a level */
#define TAG_BYTES_MAX 5
#define VARINT_BYTES_MAX 10
#define CONTINUES 0x80

enum { VARINT = 0, FIXED_64 = 1, LENGTH_DELIMITED = 2, FIXED_32 = 5 }; /* wire types */

/* One level of messages. Bit n of a mask is field n. */
typedef struct {
    uint64_t nested;   /* contains messages of the next level */
    uint64_t repeated; /* is repeated on every item below */
} Level;

typedef struct {
    const uint8_t *data;
    Level levels[LEVELS_MAX];
    size_t level_count;
    uint8_t fields[TIMES_MAX];
    size_t field_count;
    uint64_t items, low, high, repeated_bytes, part_bytes_max;
} Times;

/* Read a number of at most ten bytes before `end`; return where it ends, or 0. */
static inline size_t read_varint(const uint8_t *data, size_t at, size_t end, uint64_t *number) {
    *number = 0;
    for (unsigned place = 0; place < VARINT_BYTES_MAX && at < end; place++) {
        uint8_t byte = data[at++];
        *number |= (uint64_t)(byte & 0x7F) << 7 * place;
        if (byte < CONTINUES)
            return at;
    }
    return 0;
}

/* Walk the message from `at` to `end`; return 0 for an encoding that the twin does not decode either. */
static int walk(Times *times, size_t at, size_t end, size_t level) {
    const uint8_t *data = times->data;
    int is_item = level == times->level_count, met = 0;
    Level mask = is_item ? (Level){0} : times->levels[level];
    uint64_t found[TIMES_MAX] = {0}, items_before = times->items, repeated = 0;
    times->items += (uint64_t)is_item;
    if (is_item && times->field_count == 0)
        return 1;
    while (at < end) {
        uint64_t tag, length;
        at = read_varint(data, at, end - at > TAG_BYTES_MAX ? at + TAG_BYTES_MAX : end, &tag);
        if (!at || tag >> 3 == 0 || tag > UINT32_MAX)
            return 0;
        uint64_t field = tag >> 3, type = tag & 7, bit = field < FIELDS ? 1ULL << field : 0;
        length = type == FIXED_64 ? 8 : 4;
        if (type == VARINT || type == LENGTH_DELIMITED)
            at = read_varint(data, at, end, &length);
        else if (type != FIXED_64 && type != FIXED_32)
            return 0; /* a group, which OTLP does not have */
        if (type == VARINT)
            length = 0;
        if (!at || length > end - at)
            return 0;
        for (size_t number = 0; is_item && type == FIXED_64 && number < times->field_count; number++)
            if (field == times->fields[number])
                memcpy(&found[number], data + at, 8);
        if (type == LENGTH_DELIMITED && bit & (mask.nested | mask.repeated)) {
            int is_nested = (bit & mask.nested) != 0, is_part = !is_nested || level + 1 == times->level_count;
            __builtin_prefetch(data + at + 4 * length); /* about where the head of the fourth item from here is */
            if (is_part && length > times->part_bytes_max)
                times->part_bytes_max = length;
            if (!is_nested)
                repeated += length;
            /* Several fields are the arms of a oneof, of which a message has one. */
            else if ((mask.nested & (mask.nested - 1) && met++) || !walk(times, at, at + (size_t)length, level + 1))
                return 0;
        }
        at += (size_t)length;
    }
    uint64_t time = found[0] ? found[0] : found[1];
    if (time != 0 && time < times->low)
        times->low = time;
    if (time > times->high)
        times->high = time;
    times->repeated_bytes += (times->items - items_before) * repeated;
    return 1;
}

/* Walk every message; -1 if the arguments do not fit each other. */
static int walk_all(Times *times, const Py_buffer *data, const Py_buffer *offsets) {
    size_t size = (size_t)data->len, rows = (size_t)offsets->len / sizeof(int32_t) - 1;
    for (size_t row = 0; row < rows; row++) {
        int32_t ends[2];
        memcpy(ends, (const uint8_t *)offsets->buf + row * sizeof *ends, sizeof ends);
        if (ends[0] < 0 || ends[0] > ends[1] || (size_t)ends[1] > size)
            return -1;
        if (!walk(times, (size_t)ends[0], (size_t)ends[1], 0))
            return 0;
    }
    return 1;
}

/* nested_items(data, offsets, levels, fields) -> None | (items, earliest, latest, repeated bytes, longest part) */
PyObject *kernel_nested_items(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data, offsets, levels, fields;
    Times times = {.low = UINT64_MAX};
    if (!PyArg_ParseTuple(args, "y*y*y*y*", &data, &offsets, &levels, &fields))
        return NULL;
    int done = -1;
    times.data = data.buf;
    times.level_count = (size_t)levels.len / sizeof(Level);
    times.field_count = (size_t)fields.len;
    if (times.level_count <= LEVELS_MAX && times.field_count <= TIMES_MAX && offsets.len >= (Py_ssize_t)sizeof(int32_t)) {
        memcpy(times.levels, levels.buf, times.level_count * sizeof(Level));
        memcpy(times.fields, fields.buf, times.field_count);
        WITHOUT_GIL_IF(data.len >= GIL_BYTES_MIN, done = walk_all(&times, &data, &offsets));
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&levels);
    PyBuffer_Release(&fields);
    if (done < 0) {
        PyErr_SetString(PyExc_ValueError, "the arguments do not fit each other");
        return NULL;
    }
    if (!done)
        Py_RETURN_NONE;
    return Py_BuildValue("KKKKK", (unsigned long long)times.items, (unsigned long long)times.low,
                         (unsigned long long)times.high, (unsigned long long)times.repeated_bytes,
                         (unsigned long long)times.part_bytes_max);
}
