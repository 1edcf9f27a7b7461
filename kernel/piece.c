/*
 * Messages in the memory of an open segment. The twins are slices of that memory, views with formats, shapes and
 * strides, which the garbage collector visits; a segment keeps tens of thousands of them. A piece is a place and a
 * length, offers a buffer, and refers to nothing that the collector knows.
 */
#include "kernel.h"

typedef struct {
    PyObject_HEAD
    Py_buffer owner; /* keeps the memory alive and in place */
    uint8_t *bytes;
    Py_ssize_t size;
} Piece;

static PyObject *piece_type, *obj_name;

/* Return the `size` bytes at `bytes`, which are in the memory of the memoryview `region`. */
PyObject *piece_new(PyObject *region, uint8_t *bytes, size_t size) {
    PyObject *owner = PyObject_GetAttr(region, obj_name);
    if (owner == NULL)
        return NULL;
    Piece *piece = PyObject_New(Piece, (PyTypeObject *)piece_type);
    if (piece == NULL) {
        Py_DECREF(owner);
        return NULL;
    }
    piece->owner.obj = NULL;
    piece->bytes = bytes;
    piece->size = (Py_ssize_t)size;
    int result = PyObject_GetBuffer(owner, &piece->owner, PyBUF_SIMPLE);
    Py_DECREF(owner);
    if (result < 0) {
        Py_DECREF(piece);
        return NULL;
    }
    uintptr_t start = (uintptr_t)piece->owner.buf, at = (uintptr_t)bytes, all = (uintptr_t)piece->owner.len;
    if (at < start || at - start > all || size > all - (at - start)) {
        Py_DECREF(piece);
        PyErr_SetString(PyExc_BufferError, "the region is not in the memory of its object");
        return NULL;
    }
    return (PyObject *)piece;
}

static void piece_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&((Piece *)self)->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int piece_buffer(PyObject *self, Py_buffer *view, int flags) {
    Piece *piece = (Piece *)self;
    return PyBuffer_FillInfo(view, self, piece->bytes, piece->size, 1, flags);
}

static Py_ssize_t piece_length(PyObject *self) { return ((Piece *)self)->size; }

static PyType_Slot PIECE_SLOTS[] = {
    {Py_tp_dealloc, (void *)piece_dealloc},
    {Py_bf_getbuffer, (void *)piece_buffer},
    {Py_sq_length, (void *)piece_length},
    {0, NULL},
};

static PyType_Spec PIECE_SPEC = {
    .name = "quiver._kernel.Piece",
    .basicsize = sizeof(Piece),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = PIECE_SLOTS,
};

int piece_init(void) {
    if (piece_type == NULL)
        piece_type = PyType_FromSpec(&PIECE_SPEC);
    if (obj_name == NULL)
        obj_name = PyUnicode_InternFromString("obj");
    return piece_type == NULL || obj_name == NULL ? -1 : 0;
}

/* copy_message(region, message) -> Piece */
PyObject *kernel_copy_message(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *region, *piece = NULL;
    Py_buffer message, into;
    if (!PyArg_ParseTuple(args, "Oy*", &region, &message))
        return NULL;
    if (PyObject_GetBuffer(region, &into, PyBUF_WRITABLE) == 0) {
        if (into.len != message.len) {
            PyErr_SetString(PyExc_ValueError, "the message does not fill the region");
        } else {
            if (message.len)
                memmove(into.buf, message.buf, (size_t)message.len);
            piece = piece_new(region, into.buf, (size_t)into.len);
        }
        PyBuffer_Release(&into);
    }
    PyBuffer_Release(&message);
    return piece;
}
