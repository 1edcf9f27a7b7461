/* A check for rows of the QWP sender. The twin is `row_check_in_python` in quiver/qwp/row_checks.py. */
#include "kernel.h"

typedef struct {
    Py_ssize_t symbols, values, fixed_bytes; /* `values` includes the timestamp */
    uint64_t whole_numbers, texts;           /* one bit per position */
} Plan;

/* Fill positions `at` to `end` of a row from a dict. Return 1, 0 if it has other names, or -1 with an exception. */
static int take_values(PyObject *dict, PyObject *names, PyObject *row, Py_ssize_t at, Py_ssize_t end) {
    if (!PyDict_CheckExact(dict) || PyDict_Size(dict) != end - at)
        return 0;
    for (; at < end; at++) {
        PyObject *value = PyDict_GetItemWithError(dict, PyTuple_GetItem(names, at));
        if (value == NULL)
            return PyErr_Occurred() ? -1 : 0;
        PyTuple_SetItem(row, at, Py_NewRef(value));
    }
    return 1;
}

/* Return the approximate size of a row, or 0 if its types are others or a value cannot be sent. */
static Py_ssize_t measure(const Plan *plan, PyObject *types, PyObject *row) {
    Py_ssize_t size = plan->fixed_bytes;
    for (Py_ssize_t at = 0; at < plan->values; at++) {
        PyObject *value = PyTuple_GetItem(row, at);
        if ((PyObject *)Py_TYPE(value) != PyTuple_GetItem(types, at))
            return 0;
        int is_too_large = 0;
        Py_ssize_t bytes = 0;
        if (plan->whole_numbers >> at & 1)
            PyLong_AsLongLongAndOverflow(value, &is_too_large);
        else if (plan->texts >> at & 1)
            PyUnicode_AsUTF8AndSize(value, &bytes);
        if (is_too_large || PyErr_Occurred()) { /* a surrogate, for example */
            PyErr_Clear();
            return 0;
        }
        size += bytes;
    }
    return size;
}

/* check(symbols, columns, at, bytes_max, rows) -> size, or 0 if the row was not added to the list `rows` */
static PyObject *check(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *names = PyTuple_GetItem(self, 0), *types = PyTuple_GetItem(self, 1);
    const Plan *plan = (const Plan *)PyBytes_AsString(PyTuple_GetItem(self, 2));
    Py_ssize_t bytes_max = count == 5 ? PyLong_AsSsize_t(args[3]) : 0, last = plan->values - 1;
    if (count != 5 || !PyList_Check(args[4]))
        return PyErr_Format(PyExc_TypeError, "expected symbols, columns, at, bytes_max and a list of rows");
    PyObject *row = bytes_max == -1 && PyErr_Occurred() ? NULL : PyTuple_New(plan->values);
    if (row == NULL)
        return NULL;
    int found = take_values(args[0], names, row, 0, plan->symbols);
    if (found == 1)
        found = take_values(args[1], names, row, plan->symbols, last);
    if (found == 1)
        PyTuple_SetItem(row, last, Py_NewRef(args[2]));
    Py_ssize_t size = found == 1 ? measure(plan, types, row) : 0;
    if (size > bytes_max)
        size = 0;
    if (found >= 0 && size > 0)
        found = PyList_Append(args[4], row);
    Py_DECREF(row);
    return found < 0 ? NULL : PyLong_FromSsize_t(size);
}

static PyMethodDef CHECK = {"check", (PyCFunction)(void (*)(void))check, METH_FASTCALL, NULL};

/* row_check(symbols, names, types, whole_numbers, texts, fixed_bytes) -> check */
PyObject *kernel_row_check(PyObject *Py_UNUSED(module), PyObject *args) {
    Plan plan;
    PyObject *names, *types;
    unsigned long long whole_numbers, texts;
    if (!PyArg_ParseTuple(args, "nO!O!KKn", &plan.symbols, &PyTuple_Type, &names, &PyTuple_Type, &types, &whole_numbers,
                          &texts, &plan.fixed_bytes))
        return NULL;
    plan.values = PyTuple_Size(types);
    plan.whole_numbers = whole_numbers;
    plan.texts = texts;
    if (plan.values < 1 || plan.values > 64 || PyTuple_Size(names) != plan.values - 1 || plan.symbols < 0
        || plan.symbols > plan.values - 1 || plan.fixed_bytes < 0)
        return PyErr_Format(PyExc_ValueError, "not the names and types of a row");
    PyObject *self = Py_BuildValue("OOy#", names, types, (const char *)&plan, (Py_ssize_t)sizeof plan);
    PyObject *made = self ? PyCFunction_New(&CHECK, self) : NULL;
    Py_XDECREF(self);
    return made;
}
