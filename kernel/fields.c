/*
 * Columns of serialized protobuf messages with two fields, key and value, where the value is a message with one of
 * several fields. The twins are in quiver/otap/any_values.py, which knows the messages: a *kind* is its number for a
 * field, given as a table from the tag. An encoding that the twins do not decode has the result None.
 */
#include "kernel.h"

#define CONTINUES 0x80
#define LENGTH_BYTES_MAX 3
#define VARINT_BYTES_MAX 10
#define SHORT_BYTES 16

enum { VARINT, FIXED_64, TRUTH }; /* how gather_numbers reads a number */

/* Ranges of bytes, one for each row, and the kind of each. */
typedef struct {
    Py_buffer data, starts, ends, kinds;
    size_t rows;
    unsigned char kind;
    int form, keeps_rows; /* gather_bytes: whether rows of other kinds become nulls */
    size_t found;         /* rows of this kind */
    size_t bytes;         /* of them, in `content` */
    uint8_t *valid, *content;
    int32_t *offsets;
    const char *error; /* for arguments that do not fit each other */
} Ranges;

/* Read a length of at most three bytes before `end`; return where its content begins, or 0. */
static inline size_t read_length(const uint8_t *data, size_t at, size_t end, size_t *length) {
    *length = 0;
    for (unsigned place = 0; place < LENGTH_BYTES_MAX && at < end; place++) {
        uint8_t byte = data[at++];
        *length |= (size_t)(byte & 0x7F) << 7 * place;
        if (byte < CONTINUES)
            return at;
    }
    return 0;
}

static inline size_t row_at(const Py_buffer *numbers, size_t row) {
    int32_t number;
    memcpy(&number, (const uint8_t *)numbers->buf + row * sizeof number, sizeof number);
    return (size_t)(int64_t)number; /* a negative number is larger than any size */
}

static int refuse(Ranges *ranges, const char *error) {
    ranges->error = error;
    return 0;
}

/* Return None for an encoding that the twins do not decode; raise if the arguments do not fit each other. */
static PyObject *not_decoded(const Ranges *ranges) {
    if (ranges->error != NULL)
        PyErr_SetString(PyExc_ValueError, ranges->error);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Call `work`, without the GIL if that is worthwhile. */
static int run(int (*work)(Ranges *, void *), Ranges *ranges, void *result) {
    int done;
    WITHOUT_GIL_IF(ranges->data.len >= GIL_BYTES_MIN, done = work(ranges, result));
    return done;
}

typedef struct {
    const uint8_t *tags, *kind_of_tag;
    uint8_t *kinds;
    int32_t *key_starts, *value_starts;
} Split;

/* Find keys and values. The offsets of the keys are set, but no key is copied. */
static int split(Ranges *ranges, void *result) {
    const Split *into = result;
    const uint8_t *data = ranges->data.buf;
    size_t size = (size_t)ranges->data.len, start = row_at(&ranges->starts, 0);
    ranges->offsets[0] = 0;
    for (size_t row = 0; row < ranges->rows; row++) {
        size_t end = row_at(&ranges->starts, row + 1), key = start, value = end, length = 0;
        if (start > end || end > size)
            return refuse(ranges, "the places are outside of the data");
        if (start < end && data[start] == into->tags[0]) {
            key = read_length(data, start + 1, end, &length);
            if (!key || length > end - key)
                return 0;
        }
        if (key + length < end) {
            size_t value_length = 0;
            if (data[key + length] != into->tags[1])
                return 0;
            value = read_length(data, key + length + 1, end, &value_length);
            if (!value || value_length != end - value)
                return 0;
        }
        ranges->bytes += length; /* the ranges ascend: all keys together are at most `size` bytes */
        ranges->offsets[row + 1] = (int32_t)ranges->bytes;
        into->key_starts[row] = (int32_t)key;
        into->value_starts[row] = (int32_t)value;
        into->kinds[row] = value < end ? into->kind_of_tag[data[value]] : 0;
        start = end;
    }
    return 1;
}

/* Copy one range to its place. Offsets are our own memory, but other threads could change the columns of ranges. */
static inline int copy_range(Ranges *ranges, size_t number, size_t start) {
    size_t size = (size_t)ranges->data.len, at = (size_t)ranges->offsets[number];
    size_t length = (size_t)ranges->offsets[number + 1] - at;
    const uint8_t *from = (const uint8_t *)ranges->data.buf + start;
    uint8_t *to = ranges->content + at;
    if (start > size || length > size - start)
        return refuse(ranges, "a range changed");
    if (length <= SHORT_BYTES && size - start >= SHORT_BYTES && ranges->bytes - at >= SHORT_BYTES)
        memcpy(to, from, SHORT_BYTES); /* the next range overwrites what is too much */
    else if (length)
        memcpy(to, from, length);
    return 1;
}

static int copy_keys(Ranges *ranges, void *result) {
    const Split *into = result;
    for (size_t row = 0; row < ranges->rows; row++)
        if (!copy_range(ranges, row, (size_t)into->key_starts[row]))
            return 0;
    return 1;
}

/* split_key_values(data, places, tags, kind_of_tag) -> None | (key offsets, keys, kinds, value starts) */
PyObject *kernel_split_key_values(PyObject *Py_UNUSED(module), PyObject *args) {
    Ranges ranges = {0};
    Py_buffer tags, table;
    Split into = {0};
    if (!PyArg_ParseTuple(args, "y*y*y*y*", &ranges.data, &ranges.starts, &tags, &table))
        return NULL;
    PyObject *result = NULL, *offsets = NULL, *keys = NULL, *kinds = NULL, *starts = NULL;
    size_t places = (size_t)ranges.starts.len / sizeof(int32_t);
    into.tags = tags.buf;
    into.kind_of_tag = table.buf;
    if (places == 0 || tags.len != 2 || table.len != 256 || ranges.data.len > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the arguments have other sizes");
        goto done;
    }
    ranges.rows = places - 1;
    offsets = new_bytes(places * sizeof(int32_t), (uint8_t **)&ranges.offsets);
    kinds = new_bytes(ranges.rows, &into.kinds);
    starts = new_bytes(ranges.rows * sizeof(int32_t), (uint8_t **)&into.value_starts);
    into.key_starts = PyMem_Malloc(places * sizeof(int32_t));
    if (into.key_starts == NULL)
        PyErr_NoMemory();
    if (offsets == NULL || kinds == NULL || starts == NULL || into.key_starts == NULL)
        goto done;
    if (run(split, &ranges, &into) && (keys = new_bytes(ranges.bytes, &ranges.content)) != NULL
        && run(copy_keys, &ranges, &into))
        result = Py_BuildValue("OOOO", offsets, keys, kinds, starts);
    else
        result = not_decoded(&ranges);
done:
    PyMem_Free(into.key_starts);
    Py_XDECREF(offsets);
    Py_XDECREF(keys);
    Py_XDECREF(kinds);
    Py_XDECREF(starts);
    PyBuffer_Release(&ranges.data);
    PyBuffer_Release(&ranges.starts);
    PyBuffer_Release(&tags);
    PyBuffer_Release(&table);
    return result;
}

/* Find the content of a row of this kind after its tag, and mark the row as valid: 1, or 0 with an error. */
static inline int content_of(Ranges *ranges, size_t row, size_t *start, size_t *end) {
    *start = row_at(&ranges->starts, row);
    *end = row_at(&ranges->ends, row);
    if (*start >= *end || *end > (size_t)ranges->data.len)
        return refuse(ranges, "a range is outside of the data");
    *start += 1;
    ranges->valid[row >> 3] |= (uint8_t)(1 << (row & 7));
    ranges->found++;
    return 1;
}

/* Find the bytes of this kind. Their offsets are set, but nothing is copied. */
static int find_bytes(Ranges *ranges, void *Py_UNUSED(result)) {
    const uint8_t *kinds = ranges->kinds.buf;
    size_t start, end, length, last = 0;
    ranges->offsets[0] = 0;
    for (size_t row = 0; row < ranges->rows; row++) {
        if (kinds[row] == ranges->kind) {
            if (!content_of(ranges, row, &start, &end))
                return 0;
            start = read_length(ranges->data.buf, start, end, &length);
            if (!start || length != end - start)
                return 0;
            ranges->bytes += length;
            if (ranges->bytes > (size_t)ranges->data.len)
                return refuse(ranges, "ranges overlap");
        } else if (!ranges->keeps_rows) {
            continue;
        }
        ranges->offsets[++last] = (int32_t)ranges->bytes;
    }
    return 1;
}

static int copy_bytes(Ranges *ranges, void *Py_UNUSED(result)) {
    size_t number = 0;
    for (size_t row = 0; row < ranges->rows; row++) {
        if (ranges->valid[row >> 3] >> (row & 7) & 1) {
            size_t length = (size_t)(ranges->offsets[number + 1] - ranges->offsets[number]);
            if (!copy_range(ranges, number, row_at(&ranges->ends, row) - length))
                return 0;
        } else if (!ranges->keeps_rows) {
            continue;
        }
        number++;
    }
    return 1;
}

static int read_number(const uint8_t *data, size_t start, size_t end, int form, uint64_t *number) {
    size_t width = end - start;
    *number = 0;
    if (form == FIXED_64) {
        if (width == sizeof *number)
            memcpy(number, data + start, sizeof *number);
        return width == sizeof *number;
    }
    if (width < 1 || width > (form == TRUTH ? 1 : VARINT_BYTES_MAX) || data[end - 1] >= CONTINUES)
        return 0;
    for (unsigned place = 0; place < width; place++) {
        if (place + 1 < width && data[start + place] < CONTINUES)
            return 0;
        *number |= (uint64_t)(data[start + place] & 0x7F) << 7 * place;
    }
    return 1;
}

static int gather_numbers(Ranges *ranges, void *Py_UNUSED(result)) {
    const uint8_t *kinds = ranges->kinds.buf;
    size_t start, end;
    uint64_t number;
    for (size_t row = 0; row < ranges->rows; row++) {
        number = 0;
        if (kinds[row] == ranges->kind) {
            if (!content_of(ranges, row, &start, &end)
                || !read_number(ranges->data.buf, start, end, ranges->form, &number))
                return 0;
        }
        if (ranges->form != TRUTH)
            memcpy(ranges->content + row * sizeof number, &number, sizeof number);
        else if (number)
            ranges->content[row >> 3] |= (uint8_t)(1 << (row & 7));
    }
    return 1;
}

static PyObject *gathered(PyObject *args, int is_bytes) {
    Ranges filled = {0}, *ranges = &filled;
    PyObject *result = NULL, *valid = NULL, *offsets = NULL, *content = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*bi", &ranges->data, &ranges->starts, &ranges->ends, &ranges->kinds,
                          &ranges->kind, is_bytes ? &ranges->keeps_rows : &ranges->form))
        return NULL;
    ranges->rows = (size_t)ranges->kinds.len;
    size_t rows = ranges->rows, bits = (rows + 7) / 8, content_bytes = rows * sizeof(uint64_t);
    if ((size_t)ranges->starts.len != rows * sizeof(int32_t) || ranges->ends.len != ranges->starts.len
        || ranges->data.len > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the arguments have other sizes");
        goto done;
    }
    valid = new_bytes(bits, &ranges->valid);
    if (valid == NULL)
        goto done;
    memset(ranges->valid, 0, bits);
    if (is_bytes) {
        offsets = new_bytes((rows + 1) * sizeof(int32_t), (uint8_t **)&ranges->offsets);
        if (offsets == NULL)
            goto done;
        if (run(find_bytes, ranges, NULL) && (content = new_bytes(ranges->bytes, &ranges->content)) != NULL
            && run(copy_bytes, ranges, NULL))
            result = Py_BuildValue("OOO", ranges->found < rows ? valid : Py_None, offsets, content);
        else
            result = not_decoded(ranges);
        goto done;
    }
    content = new_bytes(ranges->form == TRUTH ? bits : content_bytes, &ranges->content);
    if (content == NULL)
        goto done;
    if (ranges->form == TRUTH)
        memset(ranges->content, 0, bits);
    if (run(gather_numbers, ranges, NULL))
        result = Py_BuildValue("OO", ranges->found < rows ? valid : Py_None, content);
    else
        result = not_decoded(ranges);
done:
    Py_XDECREF(valid);
    Py_XDECREF(offsets);
    Py_XDECREF(content);
    PyBuffer_Release(&ranges->data);
    PyBuffer_Release(&ranges->starts);
    PyBuffer_Release(&ranges->ends);
    PyBuffer_Release(&ranges->kinds);
    return result;
}

/* gather_bytes(data, starts, ends, kinds, kind, keeps_rows) -> None | (validity or None, offsets, content) */
PyObject *kernel_gather_bytes(PyObject *Py_UNUSED(module), PyObject *args) {
    return gathered(args, 1);
}

/* gather_numbers(data, starts, ends, kinds, kind, form) -> None | (validity or None, values) */
PyObject *kernel_gather_numbers(PyObject *Py_UNUSED(module), PyObject *args) {
    return gathered(args, 0);
}
