/* The module `quiver._kernel`: its functions, and what it needs from the processor. */
#include "kernel.h"

#define METHOD(name, description) {#name, kernel_##name, METH_VARARGS, #name description}

static PyMethodDef METHODS[] = {
    METHOD(copy_message, "(region, message, /): copy message to region, and return that piece."),
    METHOD(crc32, "(data, value=0, /): the CRC-32 (IEEE) of data, continued from value."),
    METHOD(crc32c, "(data, value=0, /): the CRC-32C (Castagnoli) of data, continued from value."),
    METHOD(crc64_nvme, "(data, value=0, /): the CRC-64/NVME of data, continued from value."),
    METHOD(scan_records, "(view, offset, limit, batch_bytes, crc64, /): verify consecutive AOF2 records."),
    METHOD(pwritev, "(fd, parts, offset, /): os.pwritev, but small writes keep the GIL."),
    METHOD(write_entry, "(region, ingested_at_ns, sequence, bitmap, slots, /): an entry of the log."),
    METHOD(split_key_values, "(data, places, tags, kind_of_tag, /): keys, and places of values."),
    METHOD(gather_bytes, "(data, starts, ends, kinds, kind, keeps_rows, /): the bytes of one kind."),
    METHOD(gather_numbers, "(data, starts, ends, kinds, kind, form, /): the numbers of one kind."),
    METHOD(nested_items, "(data, offsets, levels, fields, /): number, times and sizes of messages."),
    METHOD(row_check, "(symbols, names, types, whole_numbers, texts, fixed_bytes, /): checks rows."),
    {"pack_texts", kernel_pack_texts, METH_O, "pack_texts(objects, /): an array of str objects as a column of UTF-8."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    const uint16_t one = 1;
    if (!*(const uint8_t *)&one || !crc_is_supported()) {
        PyErr_SetString(PyExc_ImportError, "this processor has no carry-less multiplication");
        return -1;
    }
    crc_init_all();
    if (entry_init() < 0 || piece_init() < 0 || bundles_init(module) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "API", KERNEL_API);
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "quiver._kernel",
    .m_doc = "Compiled functions; each has a twin in Python.",
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__kernel(void);

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&MODULE); }
