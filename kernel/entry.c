/*
 * A bundle as an entry of the store's log: layout and checksum in one call. The twin is `write_entry_in_python` in
 * quiver/store/entries.py; quiver/store/format/wal_entry.py describes the bytes.
 */
#include "kernel.h"

#define LENGTH_BYTES 4
#define ENTRY_HEAD_BYTES 29
#define SLOT_HEAD_BYTES 42
#define FINGERPRINT_BYTES 32
#define CRC_BYTES 4
#define SLOTS_MAX 64

static const uint8_t END_OF_STREAM[8] = {0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0};

/* Attributes of `EncodedSlot` and `StreamSchema`. */
enum { SLOT, STREAM_SCHEMA, ROW_COUNT, MESSAGE, PAYLOAD_BYTES, FINGERPRINT, SCHEMA_BYTES, HAS_DICTIONARIES, NAME_COUNT };
static const char *const NAME_TEXTS[NAME_COUNT] = {
    "slot", "stream_schema", "row_count", "message", "payload_bytes", "fingerprint", "schema_bytes", "has_dictionaries",
};
static PyObject *names[NAME_COUNT];

int entry_init(void) {
    for (int name = 0; name < NAME_COUNT; name++) {
        if (names[name] == NULL)
            names[name] = PyUnicode_InternFromString(NAME_TEXTS[name]);
        if (names[name] == NULL)
            return -1;
    }
    return 0;
}

/* The region of an entry, and how much of it is written. */
typedef struct {
    PyObject *region;
    uint8_t *bytes;
    size_t size, at;
} Entry;

static int does_not_fit(void) {
    PyErr_SetString(PyExc_ValueError, "the slots do not fill the entry");
    return -1;
}

static int put(Entry *entry, const void *data, size_t size) {
    if (size > entry->size - entry->at)
        return does_not_fit();
    if (size)
        memcpy(entry->bytes + entry->at, data, size);
    entry->at += size;
    return 0;
}

static int put_number(Entry *entry, uint64_t value, size_t size) {
    if (size < 8 && value >> 8 * size)
        return does_not_fit();
    return put(entry, &value, size);
}

/* Put an unsigned attribute. */
static int put_attribute(Entry *entry, PyObject *object, int name, size_t size) {
    PyObject *attribute = PyObject_GetAttr(object, names[name]);
    if (attribute == NULL)
        return -1;
    unsigned long long value = PyLong_AsUnsignedLongLong(attribute);
    Py_DECREF(attribute);
    return PyErr_Occurred() ? -1 : put_number(entry, value, size);
}

/* Put the bytes of an attribute, which must be `size` if that is not 0. */
static int put_bytes(Entry *entry, PyObject *object, int name, size_t size) {
    PyObject *attribute = PyObject_GetAttr(object, names[name]);
    if (attribute == NULL)
        return -1;
    Py_buffer view;
    int result = PyObject_GetBuffer(attribute, &view, PyBUF_SIMPLE);
    Py_DECREF(attribute);
    if (result < 0)
        return -1;
    result = size && (size_t)view.len != size ? does_not_fit() : put(entry, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return result;
}

/* Put the message, and let the slot keep its place in the region instead of it. */
static int put_message(Entry *entry, PyObject *slot) {
    size_t start = entry->at;
    if (put_bytes(entry, slot, MESSAGE, 0) < 0)
        return -1;
    PyObject *kept = piece_new(entry->region, entry->bytes + start, entry->at - start);
    if (kept == NULL)
        return -1;
    int result = PyObject_SetAttr(slot, names[MESSAGE], kept);
    Py_DECREF(kept);
    return result;
}

static int put_slot(Entry *entry, PyObject *slot) {
    PyObject *stream = PyObject_GetAttr(slot, names[STREAM_SCHEMA]);
    if (stream == NULL)
        return -1;
    int result = -1;
    PyObject *dictionaries = PyObject_GetAttr(stream, names[HAS_DICTIONARIES]);
    int has_dictionaries = dictionaries == NULL ? -1 : PyObject_IsTrue(dictionaries);
    if (has_dictionaries >= 0 && put_attribute(entry, slot, SLOT, 2) == 0
        && put_bytes(entry, stream, FINGERPRINT, FINGERPRINT_BYTES) == 0
        && put_attribute(entry, slot, ROW_COUNT, 4) == 0 && put_attribute(entry, slot, PAYLOAD_BYTES, 4) == 0
        && put_bytes(entry, stream, SCHEMA_BYTES, 0) == 0 && put_message(entry, slot) == 0)
        result = has_dictionaries ? 0 : put(entry, END_OF_STREAM, sizeof END_OF_STREAM);
    Py_XDECREF(dictionaries);
    Py_DECREF(stream);
    return result;
}

static int put_slots(Entry *entry, PyObject *slots) {
    for (Py_ssize_t number = 0; number < PyList_Size(slots); number++) {
        PyObject *slot = PyList_GetItem(slots, number);
        if (slot == NULL)
            return -1;
        Py_INCREF(slot); /* Python code of an attribute could change the list */
        int result = put_slot(entry, slot);
        Py_DECREF(slot);
        if (result < 0)
            return -1;
    }
    return 0;
}

static int put_checksum(Entry *entry) {
    const uint8_t *covered = entry->bytes + LENGTH_BYTES;
    size_t size = entry->at - LENGTH_BYTES;
    uint64_t checksum;
    WITHOUT_GIL_IF(size >= GIL_BYTES_MIN, checksum = crc_update(&CRC32, covered, size, 0));
    return put_number(entry, checksum, CRC_BYTES);
}

/* write_entry(region, ingested_at_ns, sequence, bitmap, slots) -> None */
PyObject *kernel_write_entry(PyObject *Py_UNUSED(module), PyObject *args) {
    Entry entry = {0};
    unsigned long long ingested_at_ns, sequence, bitmap;
    PyObject *slots;
    if (!PyArg_ParseTuple(args, "OKKKO", &entry.region, &ingested_at_ns, &sequence, &bitmap, &slots))
        return NULL;
    if (!PyList_Check(slots) || PyList_Size(slots) > SLOTS_MAX) {
        PyErr_SetString(PyExc_TypeError, "slots is not a list of at most 64 slots");
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(entry.region, &view, PyBUF_WRITABLE) < 0)
        return NULL;
    entry.bytes = view.buf;
    entry.size = (size_t)view.len;
    uint64_t length = (uint64_t)view.len - LENGTH_BYTES - CRC_BYTES;
    int result = view.len < ENTRY_HEAD_BYTES + CRC_BYTES ? does_not_fit() : 0;
    if (result == 0 && (put_number(&entry, length, LENGTH_BYTES) < 0 || put_number(&entry, 0, 1) < 0
                        || put_number(&entry, ingested_at_ns, 8) < 0 || put_number(&entry, sequence, 8) < 0
                        || put_number(&entry, bitmap, 8) < 0 || put_slots(&entry, slots) < 0))
        result = -1;
    if (result == 0)
        result = entry.size - entry.at == CRC_BYTES ? put_checksum(&entry) : does_not_fit();
    PyBuffer_Release(&view);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}
