/*
 * CRC-32 (IEEE), CRC-32C and CRC-64/NVME: folding by carry-less multiplication, and tables for the rest.
 *
 * The first byte of a message has its highest powers of x, and bit 0 of a byte is its highest power. So 16 bytes
 * loaded from memory are a polynomial whose bit i is the coefficient of x^(127 - i). Folding replaces 16 bytes by 16
 * bytes that are congruent to them at a later place. The last 16 bytes go through the table like any message.
 */
#include "kernel.h"

#if (defined(__x86_64__) || defined(_M_X64)) && defined(__GNUC__)
#define HAS_FOLDING 1
#include <immintrin.h>
#else
#define HAS_FOLDING 0
#endif

Crc CRC32, CRC32C, CRC64_NVME;

#define CRC32_POLYNOMIAL 0xEDB88320ULL
#define CRC32C_POLYNOMIAL 0x82F63B78ULL
#define CRC64_NVME_POLYNOMIAL 0x9A6C9329AC4BC9B5ULL

/* Return x^exponent modulo the polynomial, with x^63 in bit 0. */
static uint64_t power_of_x(uint64_t polynomial, int bits, int exponent) {
    uint64_t value = 1ULL << (bits - 1);
    for (int step = 0; step < exponent; step++)
        value = (value >> 1) ^ (value & 1 ? polynomial : 0);
    return value << (64 - bits);
}

static void crc_init(Crc *crc, uint64_t polynomial, int bits) {
    for (int byte = 0; byte < 256; byte++) {
        uint64_t value = (uint64_t)byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ (value & 1 ? polynomial : 0);
        crc->table[0][byte] = value;
    }
    for (int zeros = 1; zeros < 8; zeros++) {
        for (int byte = 0; byte < 256; byte++) {
            uint64_t value = crc->table[zeros - 1][byte];
            crc->table[zeros][byte] = (value >> 8) ^ crc->table[0][value & 0xFF];
        }
    }
    /* A carry-less product of two reflected values has one power of x too many: hence the - 1. */
    crc->fold_2048[0] = power_of_x(polynomial, bits, 2048 + 64 - 1);
    crc->fold_2048[1] = power_of_x(polynomial, bits, 2048 - 1);
    crc->fold_512[0] = power_of_x(polynomial, bits, 512 + 64 - 1);
    crc->fold_512[1] = power_of_x(polynomial, bits, 512 - 1);
    crc->fold_128[0] = power_of_x(polynomial, bits, 128 + 64 - 1);
    crc->fold_128[1] = power_of_x(polynomial, bits, 128 - 1);
    crc->mask = bits == 64 ? UINT64_MAX : (1ULL << bits) - 1;
}

void crc_init_all(void) {
    crc_init(&CRC32, CRC32_POLYNOMIAL, 32);
    crc_init(&CRC32C, CRC32C_POLYNOMIAL, 32);
    crc_init(&CRC64_NVME, CRC64_NVME_POLYNOMIAL, 64);
}

/* Return the product of two polynomials modulo the polynomial of CRC-64/NVME, all with x^63 in bit 0. */
static uint64_t crc64_times(uint64_t a, uint64_t b) {
    uint64_t product = 0;
    for (; a; a <<= 1) {
        product ^= a >> 63 ? b : 0;
        b = (b >> 1) ^ (b & 1 ? CRC64_NVME_POLYNOMIAL : 0);
    }
    return product;
}

uint64_t crc64_join(Crc64Shift *shift, uint64_t first, uint64_t second, uint64_t second_bytes) {
    if (shift->bytes != second_bytes || !second_bytes) {
        uint64_t power = 1ULL << (63 - 8); /* x^8: one byte */
        shift->bytes = second_bytes;
        shift->multiplier = 1ULL << 63;
        for (uint64_t left = second_bytes; left; left >>= 1) {
            if (left & 1)
                shift->multiplier = crc64_times(shift->multiplier, power);
            power = crc64_times(power, power);
        }
    }
    return crc64_times(first, shift->multiplier) ^ second;
}

static uint64_t by_table(const Crc *crc, const uint8_t *data, size_t size, uint64_t state) {
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word = load_u64(data) ^ state;
        state = crc->table[7][word & 0xFF] ^ crc->table[6][(word >> 8) & 0xFF]
              ^ crc->table[5][(word >> 16) & 0xFF] ^ crc->table[4][(word >> 24) & 0xFF]
              ^ crc->table[3][(word >> 32) & 0xFF] ^ crc->table[2][(word >> 40) & 0xFF]
              ^ crc->table[1][(word >> 48) & 0xFF] ^ crc->table[0][word >> 56];
    }
    for (; size; data++, size--)
        state = crc->table[0][(state ^ *data) & 0xFF] ^ (state >> 8);
    return state;
}

#if HAS_FOLDING

static int has_wide_folding;

int crc_is_supported(void) {
    __builtin_cpu_init();
    has_wide_folding = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

#define FOLDING __attribute__((target("pclmul,sse4.1")))

FOLDING static inline __m128i fold(__m128i folded, __m128i by, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(folded, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(folded, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

FOLDING static inline __m128i load(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)at); }

#define WIDE_FOLDING __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))
#define WIDE_BYTES_MIN 512

WIDE_FOLDING static inline __m512i fold_wide(__m512i folded, __m512i by, __m512i next) {
    __m512i low = _mm512_clmulepi64_epi128(folded, by, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(folded, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* xor of all three */
}

WIDE_FOLDING static inline __m512i load_wide(const uint8_t *at) { return _mm512_loadu_si512(at); }

/* Consume the multiple of 256 bytes in `size`, which is at least 256; the result is congruent to them. */
WIDE_FOLDING static void by_wide_folding(const Crc *crc, const uint8_t *data, size_t size, uint64_t state, uint8_t *rest) {
    const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)crc->fold_2048));
    const __m512i by_512 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)crc->fold_512));
    __m512i first = _mm512_xor_si512(load_wide(data), _mm512_zextsi128_si512(_mm_set_epi64x(0, (long long)state)));
    __m512i second = load_wide(data + 64), third = load_wide(data + 128), fourth = load_wide(data + 192);
    for (data += 256, size -= 256; size >= 256; data += 256, size -= 256) {
        first = fold_wide(first, by_2048, load_wide(data));
        second = fold_wide(second, by_2048, load_wide(data + 64));
        third = fold_wide(third, by_2048, load_wide(data + 128));
        fourth = fold_wide(fourth, by_2048, load_wide(data + 192));
    }
    first = fold_wide(first, by_512, second);
    first = fold_wide(first, by_512, third);
    first = fold_wide(first, by_512, fourth);
    _mm512_storeu_si512(rest, first);
}

/* Consume the multiple of 16 bytes in `size`, which is at least 16. */
FOLDING static uint64_t by_folding(const Crc *crc, const uint8_t *data, size_t size, uint64_t state) {
    const __m128i by_512 = _mm_set_epi64x((long long)crc->fold_512[1], (long long)crc->fold_512[0]);
    const __m128i by_128 = _mm_set_epi64x((long long)crc->fold_128[1], (long long)crc->fold_128[0]);
    __m128i first = _mm_xor_si128(load(data), _mm_set_epi64x(0, (long long)state));
    if (size >= 64) {
        __m128i second = load(data + 16), third = load(data + 32), fourth = load(data + 48);
        for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
            first = fold(first, by_512, load(data));
            second = fold(second, by_512, load(data + 16));
            third = fold(third, by_512, load(data + 32));
            fourth = fold(fourth, by_512, load(data + 48));
        }
        first = fold(first, by_128, second);
        first = fold(first, by_128, third);
        first = fold(first, by_128, fourth);
    } else {
        data += 16, size -= 16;
    }
    for (; size >= 16; data += 16, size -= 16)
        first = fold(first, by_128, load(data));
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, first);
    return by_table(crc, rest, sizeof rest, 0);
}

#else

int crc_is_supported(void) { return 0; }

static uint64_t by_folding(const Crc *crc, const uint8_t *data, size_t size, uint64_t state) {
    return by_table(crc, data, size & ~(size_t)15, state);
}

#endif

uint64_t crc_update(const Crc *crc, const uint8_t *data, size_t size, uint64_t value) {
    uint64_t state = ~value & crc->mask;
#if HAS_FOLDING
    if (has_wide_folding && size >= WIDE_BYTES_MIN) {
        uint8_t rest[64];
        by_wide_folding(crc, data, size, state, rest);
        state = by_folding(crc, rest, sizeof rest, 0);
        data += size & ~(size_t)255;
        size &= 255;
    }
#endif
    if (size >= 32) {
        state = by_folding(crc, data, size, state);
        data += size & ~(size_t)15;
        size &= 15;
    }
    return ~by_table(crc, data, size, state) & crc->mask;
}

static PyObject *checksum(const Crc *crc, PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    unsigned long long value = 0;
    if (!PyArg_ParseTuple(args, "y*|K", &data, &value))
        return NULL;
    uint64_t found;
    WITHOUT_GIL_IF(data.len >= GIL_BYTES_MIN, found = crc_update(crc, data.buf, (size_t)data.len, value));
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLongLong(found);
}

PyObject *kernel_crc32(PyObject *module, PyObject *args) { return checksum(&CRC32, module, args); }
PyObject *kernel_crc32c(PyObject *module, PyObject *args) { return checksum(&CRC32C, module, args); }
PyObject *kernel_crc64_nvme(PyObject *module, PyObject *args) { return checksum(&CRC64_NVME, module, args); }
