/* The module `quiver._kernel`: its functions, and what it needs from the processor. */
#include "kernel.h"

static PyMethodDef METHODS[] = {
    {"copy_message", kernel_copy_message, METH_VARARGS,
     "copy_message(region, message, /): copy message to region, and return it as a piece of the region's memory."},
    {"crc32", kernel_crc32, METH_VARARGS, "crc32(data, value=0, /): the CRC-32 (IEEE) of data, continued from value."},
    {"crc32c", kernel_crc32c, METH_VARARGS,
     "crc32c(data, value=0, /): the CRC-32C (Castagnoli) of data, continued from value."},
    {"crc64_nvme", kernel_crc64_nvme, METH_VARARGS,
     "crc64_nvme(data, value=0, /): the CRC-64/NVME of data, continued from value."},
    {"scan_records", kernel_scan_records, METH_VARARGS,
     "scan_records(view, offset, limit, batch_bytes, crc64, /): verify consecutive AOF2 records."},
    {"pwritev", kernel_pwritev, METH_VARARGS,
     "pwritev(fd, parts, offset, /): os.pwritev, but small writes keep the GIL."},
    {"write_entry", kernel_write_entry, METH_VARARGS,
     "write_entry(region, ingested_at_ns, sequence, bitmap, slots, /): lay out an entry of the log in region."},
    {"split_key_values", kernel_split_key_values, METH_VARARGS,
     "split_key_values(data, places, tags, kind_of_tag, /): keys, and where values are, of serialized pairs."},
    {"gather_bytes", kernel_gather_bytes, METH_VARARGS,
     "gather_bytes(data, starts, ends, kinds, kind, keeps_rows, /): the bytes of all values of a kind."},
    {"gather_numbers", kernel_gather_numbers, METH_VARARGS,
     "gather_numbers(data, starts, ends, kinds, kind, form, /): the numbers of all values of a kind."},
    {"nested_items", kernel_nested_items, METH_VARARGS,
     "nested_items(data, offsets, levels, fields, /): the number, times and sizes of nested messages."},
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
