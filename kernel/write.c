/*
 * `os.pwritev`, but writes of less than 4 KiB keep the GIL: they take a microsecond, and to get the GIL back from a busy
 * thread up to 5 ms. A larger write is time in which another thread can run. The twin is `os.pwritev`.
 */
#define _DEFAULT_SOURCE /* pwritev */
#include "kernel.h"

#include <errno.h>
#include <limits.h>
#include <sys/uio.h>

#define FEW_PARTS 8 /* their buffers need no allocation */
#define WRITE_GIL_BYTES_MIN 4096 /* with 64 KiB, as for copies, the thread that seals came too late */

static ssize_t write_parts(int fd, const struct iovec *parts, int count, off_t offset, size_t total) {
    for (;;) {
        ssize_t written;
        int failure;
        if (total < WRITE_GIL_BYTES_MIN) {
            written = pwritev(fd, parts, count, offset);
        } else {
            Py_BEGIN_ALLOW_THREADS
            written = pwritev(fd, parts, count, offset);
            failure = errno;
            Py_END_ALLOW_THREADS
            errno = failure;
        }
        if (written >= 0)
            return written;
        if (errno != EINTR) {
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        if (PyErr_CheckSignals() < 0)
            return -1;
    }
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
PyObject *kernel_pwritev(PyObject *module, PyObject *args) {
    (void)module;
    int fd;
    PyObject *parts;
    long long offset;
    if (!PyArg_ParseTuple(args, "iOL", &fd, &parts, &offset))
        return NULL;
    Py_ssize_t count = PySequence_Size(parts);
    if (count < 0)
        return NULL;
    ssize_t written = -1;
    if (count <= FEW_PARTS) {
        Py_buffer views[FEW_PARTS];
        struct iovec pieces[FEW_PARTS];
        written = write_views(fd, parts, count, (off_t)offset, views, pieces);
    } else if (count > INT_MAX / 2) {
        errno = EINVAL;
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        Py_buffer *views = PyMem_Malloc((size_t)count * sizeof(Py_buffer));
        struct iovec *pieces = PyMem_Malloc((size_t)count * sizeof(struct iovec));
        if (views == NULL || pieces == NULL)
            PyErr_NoMemory();
        else
            written = write_views(fd, parts, count, (off_t)offset, views, pieces);
        PyMem_Free(views);
        PyMem_Free(pieces);
    }
    return written < 0 ? NULL : PyLong_FromSsize_t(written);
}
