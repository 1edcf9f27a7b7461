/*
 * `os.pwritev`, but writes of less than 4 KiB keep the GIL: they take a microsecond, and to get the GIL back from a busy
 * thread up to 5 ms. A larger write is time in which another thread can run. The twin is `os.pwritev`.
 */
#define _DEFAULT_SOURCE /* pwritev */
#include "kernel.h"

#include <errno.h>
#include <limits.h>
#include <sys/uio.h>

#define WRITE_GIL_BYTES_MIN 4096 /* with 64 KiB, as for copies, the thread that seals came too late */

static ssize_t write_parts(int fd, const struct iovec *parts, int count, off_t offset, size_t total) {
    ssize_t written;
    int failure;
    do {
        WITHOUT_GIL_IF(total >= WRITE_GIL_BYTES_MIN, (written = pwritev(fd, parts, count, offset), failure = errno));
    } while (written < 0 && failure == EINTR && PyErr_CheckSignals() == 0);
    if (written < 0 && failure != EINTR) {
        errno = failure;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return written;
}

/* Write `count` parts of a sequence; `views` and `pieces` have that many items. */
static ssize_t write_views(int fd, PyObject *parts, Py_ssize_t count, off_t offset, Py_buffer *views,
                           struct iovec *pieces) {
    Py_ssize_t held = 0;
    size_t total = 0;
    ssize_t written = -1;
    for (; held < count; held++) {
        PyObject *part = PySequence_GetItem(parts, held);
        int result = part == NULL ? -1 : PyObject_GetBuffer(part, &views[held], PyBUF_SIMPLE);
        Py_XDECREF(part);
        if (result < 0)
            break;
        pieces[held] = (struct iovec){.iov_base = views[held].buf, .iov_len = (size_t)views[held].len};
        total += (size_t)views[held].len;
    }
    if (held == count)
        written = write_parts(fd, pieces, (int)count, offset, total);
    while (held)
        PyBuffer_Release(&views[--held]);
    return written;
}

/* pwritev(fd, parts, offset) -> written */
PyObject *kernel_pwritev(PyObject *Py_UNUSED(module), PyObject *args) {
    int fd;
    PyObject *parts;
    long long offset;
    if (!PyArg_ParseTuple(args, "iOL", &fd, &parts, &offset))
        return NULL;
    Py_ssize_t count = PySequence_Size(parts);
    if (count < 0)
        return NULL;
    if (count > INT_MAX / 2) {
        errno = EINVAL;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    ssize_t written = -1;
    Py_buffer *views = PyMem_Malloc((size_t)count * (sizeof(Py_buffer) + sizeof(struct iovec)));
    if (views == NULL)
        PyErr_NoMemory();
    else
        written = write_views(fd, parts, count, (off_t)offset, views, (struct iovec *)(views + count));
    PyMem_Free(views);
    return written < 0 ? NULL : PyLong_FromSsize_t(written);
}
