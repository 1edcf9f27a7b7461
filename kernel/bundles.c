/*
 * The fields of a bundle, and bundles that are read from a store, one for each batch. The twin is `BundleFields` in
 * quiver/bundle.py.
 */
#include "kernel.h"
#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *known, *only, *only_slot, *nbytes, *adapter, *ingested_at_ns, *named;
} Fields;

/* No garbage collection: a bundle contains batches and numbers, and nothing that leads back to it. */
static PyMemberDef FIELDS[] = {
    {"_known", T_OBJECT_EX, offsetof(Fields, known), 0, NULL},
    {"_only", T_OBJECT_EX, offsetof(Fields, only), 0, NULL},
    {"_only_slot", T_OBJECT_EX, offsetof(Fields, only_slot), 0, NULL},
    {"_nbytes", T_OBJECT_EX, offsetof(Fields, nbytes), 0, NULL},
    {"adapter", T_OBJECT_EX, offsetof(Fields, adapter), 0, NULL},
    {"ingested_at_ns", T_OBJECT_EX, offsetof(Fields, ingested_at_ns), 0, NULL},
    {"named", T_OBJECT_EX, offsetof(Fields, named), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* Free an object that was allocated by its type, with the objects it refers to. */
static void dealloc(PyObject *self, PyObject **first, int count) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    for (int at = 0; at < count; at++)
        Py_CLEAR(first[at]);
    release(self);
    Py_DECREF(type);
}

static void fields_dealloc(PyObject *self) { dealloc(self, &((Fields *)self)->known, 7); }

/* An iterator over bundles. */
typedef struct {
    PyObject_HEAD
    PyObject *type, *slot, *batches, *times_ns, *adapter, *nbytes;
} Reading;

static PyTypeObject *reading_type;

static void reading_dealloc(PyObject *self) { dealloc(self, &((Reading *)self)->type, 6); }

static PyObject *reading_next(PyObject *self) {
    Reading *reading = (Reading *)self;
    PyObject *batch = PyIter_Next(reading->batches);
    PyObject *time_ns = batch ? PyIter_Next(reading->times_ns) : NULL;
    PyObject *bundle = time_ns ? PyType_GenericAlloc((PyTypeObject *)reading->type, 0) : NULL;
    if (bundle == NULL) {
        Py_XDECREF(batch);
        Py_XDECREF(time_ns);
        return NULL;
    }
    Fields *fields = (Fields *)bundle;
    fields->known = Py_NewRef(Py_None);
    fields->only = batch;
    fields->only_slot = Py_NewRef(reading->slot);
    fields->nbytes = Py_NewRef(reading->nbytes);
    fields->adapter = Py_NewRef(reading->adapter);
    fields->ingested_at_ns = time_ns;
    fields->named = Py_NewRef(Py_False);
    return bundle;
}

static PyObject *each_of_read(PyObject *type, PyObject *args) {
    PyObject *slot, *batches, *times_ns, *adapter;
    if (!PyArg_ParseTuple(args, "OOOO", &slot, &batches, &times_ns, &adapter))
        return NULL;
    Reading *reading = (Reading *)PyType_GenericAlloc(reading_type, 0);
    if (reading == NULL)
        return NULL;
    reading->type = Py_NewRef(type);
    reading->slot = Py_NewRef(slot);
    reading->batches = PyObject_GetIter(batches);
    reading->times_ns = PyObject_GetIter(times_ns);
    reading->adapter = Py_NewRef(adapter);
    reading->nbytes = PyLong_FromLong(-1);
    if (reading->batches == NULL || reading->times_ns == NULL || reading->nbytes == NULL)
        Py_CLEAR(reading);
    return (PyObject *)reading;
}

static PyMethodDef METHODS[] = {
    {"each_of_read", each_of_read, METH_VARARGS | METH_CLASS,
     "each_of_read(slot, batches, times_ns, adapter, /): iterate over bundles, each with one batch in slot."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot FIELDS_SLOTS[] = {
    {Py_tp_dealloc, (void *)fields_dealloc}, {Py_tp_members, FIELDS}, {Py_tp_methods, METHODS}, {0, NULL},
};
static PyType_Slot READING_SLOTS[] = {
    {Py_tp_dealloc, (void *)reading_dealloc}, {Py_tp_iter, (void *)PyObject_SelfIter},
    {Py_tp_iternext, (void *)reading_next}, {0, NULL},
};
static PyType_Spec FIELDS_SPEC = {
    "quiver._kernel.BundleFields", sizeof(Fields), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, FIELDS_SLOTS,
};
static PyType_Spec READING_SPEC = {"quiver._kernel.Reading", sizeof(Reading), 0, Py_TPFLAGS_DEFAULT, READING_SLOTS};

int bundles_init(PyObject *module) {
    if (reading_type == NULL)
        reading_type = (PyTypeObject *)PyType_FromSpec(&READING_SPEC);
    PyObject *fields = reading_type ? PyType_FromSpec(&FIELDS_SPEC) : NULL;
    int status = fields ? PyModule_AddObjectRef(module, "BundleFields", fields) : -1;
    Py_XDECREF(fields);
    return status;
}
