/* A column of str objects as UTF-8. The twin is `objects_in_python` in quiver/qwp/tables.py. */
#include "kernel.h"

#include <math.h>

/* Return the UTF-8 bytes of a str, NULL with size 0 for None or NaN, or NULL with size -1 for another object. */
static inline const char *utf8_of(PyObject *object, Py_ssize_t *size) {
    *size = -1;
    if (object == NULL)
        return NULL;
    if (!PyUnicode_CheckExact(object)) {
        if (object == Py_None || (PyFloat_CheckExact(object) && isnan(PyFloat_AsDouble(object))))
            *size = 0;
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(object, size);
    if (text == NULL) {
        PyErr_Clear(); /* a surrogate */
        *size = -1;
    }
    return text;
}

/* A bytearray that grows, and its bytes. */
typedef struct {
    PyObject *array;
    char *bytes;
    size_t size, capacity;
} Content;

/* Append, and return whether there was enough memory for it. */
static inline int append(Content *content, const char *text, size_t size) {
    if (size > content->capacity - content->size) {
        content->capacity = 2 * content->capacity + size + 4096;
        if (PyByteArray_Resize(content->array, (Py_ssize_t)content->capacity) < 0)
            return 0;
        content->bytes = PyByteArray_AsString(content->array);
    }
    if (size)
        memcpy(content->bytes + content->size, text, size);
    content->size += size;
    return 1;
}

/* Fill the columns. Return 1, 0 for objects that the twin converts, or -1 with an exception. */
static int pack(PyObject *const *objects, size_t rows, uint8_t *valid, int32_t *offsets, Content *content) {
    offsets[0] = 0;
    for (size_t row = 0; row < rows; row++) {
        Py_ssize_t size;
        const char *text = utf8_of(objects[row], &size);
        if (size < 0 || (size_t)size > INT32_MAX - content->size)
            return 0;
        if (!append(content, text, (size_t)size))
            return -1;
        offsets[row + 1] = (int32_t)content->size;
        if (text != NULL)
            valid[row >> 3] |= (uint8_t)(1 << (row & 7));
    }
    return 1;
}

/* pack_texts(objects) -> None | (validity, offsets, content); None if an object is no str, None or NaN */
PyObject *kernel_pack_texts(PyObject *Py_UNUSED(module), PyObject *array) {
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    PyObject *result = NULL, *valid = NULL, *offsets = NULL;
    Content content = {.array = PyByteArray_FromStringAndSize(NULL, 0)};
    if (content.array == NULL)
        goto done;
    if (view.format == NULL || strcmp(view.format, "O") != 0) {
        PyErr_SetString(PyExc_TypeError, "not an array of objects");
        goto done;
    }
    size_t rows = (size_t)view.len / sizeof(PyObject *), bits = (rows + 7) / 8;
    uint8_t *bit_bytes;
    int32_t *places;
    if ((valid = new_bytes(bits, &bit_bytes)) == NULL
        || (offsets = new_bytes((rows + 1) * sizeof *places, (uint8_t **)&places)) == NULL)
        goto done;
    memset(bit_bytes, 0, bits);
    int packed = pack(view.buf, rows, bit_bytes, places, &content);
    if (packed == 0)
        result = Py_NewRef(Py_None);
    else if (packed > 0 && PyByteArray_Resize(content.array, (Py_ssize_t)content.size) == 0)
        result = Py_BuildValue("OOO", valid, offsets, content.array);
done:
    Py_XDECREF(content.array);
    Py_XDECREF(valid);
    Py_XDECREF(offsets);
    PyBuffer_Release(&view);
    return result;
}
