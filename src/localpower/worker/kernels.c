/* The passes over a shard's rows that take the time: column statistics, and the product.
 *
 * The local product is Y += B'(B - 1s')Z for a block of rows, each read once for both factors.
 * Dense: a group of rows stays in the cache between the two products. Z and Y come in panels of up
 * to three vectors of LANES numbers per row, so that ROWS rows times a panel of sums fill the
 * registers. Sparse: one row at a time; its r sums stay in registers.
 * Vectors are GCC's and Clang's portable ones. On x86 the functions need AVX2; `usable` tells.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#define TARGET __attribute__((target("avx2,fma")))
#define USABLE (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define TARGET
#define USABLE 1
#endif
#define INLINE static inline __attribute__((always_inline))

typedef double double4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef double double2 __attribute__((vector_size(16), aligned(8), may_alias));
typedef float float8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float float4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float float2 __attribute__((vector_size(8), aligned(4), may_alias));

enum {
  TILE = 256,        /* columns whose part of a panel stays in the first-level cache */
  GROUP_BYTES = 1 << 18, /* rows between whose two products nothing else is read */
  MIN_GROUP = 12, MAX_GROUP = 48,
  SHORT_ROW = 900, LONG_ROW = 8000, /* columns */
  SPARE = 8,         /* rows that sums are padded with, at least ROWS of any panel */
};

int usable(void) { return USABLE; }
ptrdiff_t scratch(ptrdiff_t d) { return (MAX_GROUP + SPARE) * 24 + MAX_GROUP * d; }

#define LINE(T) (ptrdiff_t)(64 / sizeof(T)) /* numbers in a line of the cache */

/* s += b[.][j] Z[j], for one column j of ROWS rows */
#define FORWARD(V, NV, ROWS, W, j)                                                                 \
  {                                                                                                \
    V z[NV];                                                                                       \
    for (int v = 0; v < NV; v++) z[v] = ((const V *)(Z + (j) * W))[v];                             \
    for (int q = 0; q < ROWS; q++) {                                                               \
      V a = b[q][j] - (V){0};                                                                      \
      for (int v = 0; v < NV; v++) s[q][v] += a * z[v];                                            \
    }                                                                                              \
  }

/* One panel: t = B Z, then Y += B't. ROWS rows share every load of Z and of Y. */
#define PANEL(T, V, LANES, NV, ROWS)                                                               \
  INLINE void panel_##T##_##NV(const T *restrict B, ptrdiff_t n, ptrdiff_t d, ptrdiff_t ahead,     \
                               const T *restrict Z, T *restrict Y, T *restrict t) {                \
    enum { W = NV * LANES };                                                                       \
    for (ptrdiff_t c = 0; c < (n + ROWS) * W; c++) t[c] = 0;                                       \
    for (ptrdiff_t first = 0; first < d; first += TILE) {                                          \
      ptrdiff_t last = first + TILE < d ? first + TILE : d;                                        \
      for (ptrdiff_t i = 0; i < n; i += ROWS) {                                                    \
        const T *b[ROWS];                                                                          \
        V s[ROWS][NV], *sums = (V *)(t + i * W);                                                   \
        for (int q = 0; q < ROWS; q++) {                                                           \
          b[q] = B + (i + q < n ? i + q : i) * d;                                                  \
          for (int v = 0; v < NV; v++) s[q][v] = sums[q * NV + v];                                 \
        }                                                                                          \
        ptrdiff_t j = first;                                                                       \
        for (; j + LINE(T) <= last; j += LINE(T)) {                                                \
          if (ahead)                                                                               \
            for (int q = 0; q < ROWS; q++) __builtin_prefetch(b[q] + ahead + j, 0, 2);             \
          for (int u = 0; u < LINE(T); u++) FORWARD(V, NV, ROWS, W, j + u)                         \
        }                                                                                          \
        for (; j < last; j++) FORWARD(V, NV, ROWS, W, j)                                           \
        for (int q = 0; q < ROWS; q++)                                                             \
          for (int v = 0; v < NV; v++) sums[q * NV + v] = s[q][v];                                 \
      }                                                                                            \
    }                                                                                              \
    for (ptrdiff_t c = n * W; c < (n + ROWS) * W; c++) t[c] = 0; /* rows that are not there */     \
    for (ptrdiff_t first = 0; first < d; first += TILE) {                                          \
      ptrdiff_t last = first + TILE < d ? first + TILE : d;                                        \
      for (ptrdiff_t i = 0; i < n; i += ROWS) {                                                    \
        const T *b[ROWS];                                                                          \
        V s[ROWS][NV], *sums = (V *)(t + i * W);                                                   \
        for (int q = 0; q < ROWS; q++) {                                                           \
          b[q] = B + (i + q < n ? i + q : i) * d;                                                  \
          for (int v = 0; v < NV; v++) s[q][v] = sums[q * NV + v];                                 \
        }                                                                                          \
        for (ptrdiff_t j = first; j < last; j++) {                                                 \
          V y[NV], *at = (V *)(Y + j * W);                                                         \
          for (int v = 0; v < NV; v++) y[v] = at[v];                                               \
          for (int q = 0; q < ROWS; q++) {                                                         \
            V a = b[q][j] - (V){0};                                                                \
            for (int v = 0; v < NV; v++) y[v] += a * s[q][v];                                      \
          }                                                                                        \
          for (int v = 0; v < NV; v++) at[v] = y[v];                                               \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  }

/* B is (n, d), row after row; shift (d) or null; Z and Y are panels one after the other, `vectors`
 * vectors in all; `work` has room for `scratch(d)` numbers. */
#define DENSE(T, LANES)                                                                            \
  TARGET void dense_##T(const T *B, ptrdiff_t n, ptrdiff_t d, const T *shift, int vectors,         \
                        const T *Z, T *Y, T *work) {                                               \
    T *t = work, *shifted = work + (MAX_GROUP + SPARE) * 24;                                       \
    ptrdiff_t group = GROUP_BYTES / (ptrdiff_t)sizeof(T) / (d + 1) / MIN_GROUP * MIN_GROUP;        \
    /* rows that are too long for the cache at least share what is read of Z and Y */              \
    group = group < MIN_GROUP ? (d < LONG_ROW ? MIN_GROUP : MAX_GROUP)                             \
                              : group > MAX_GROUP ? MAX_GROUP : group;                             \
    for (ptrdiff_t i = 0; i < n; i += group, B += group * d) {                                     \
      ptrdiff_t m = i + group < n ? group : n - i;                                                 \
      const T *rows = B, *z = Z;                                                                   \
      if (shift) {                                                                                 \
        for (ptrdiff_t q = 0; q < m; q++)                                                          \
          for (ptrdiff_t j = 0; j < d; j++) shifted[q * d + j] = B[q * d + j] - shift[j];          \
        rows = shifted;                                                                            \
      }                                                                                            \
      T *y = Y;                                                                                    \
      /* short rows are no streams that the machine would foresee by itself */                     \
      ptrdiff_t ahead = !shift && d <= SHORT_ROW && i + 2 * group <= n ? group * d : 0;            \
      for (int left = vectors; left > 0; left -= 3) {                                              \
        int nv = left < 3 ? left : 3;                                                              \
        if (nv == 3) panel_##T##_3(rows, m, d, ahead, z, y, t);                                           \
        else if (nv == 2) panel_##T##_2(rows, m, d, ahead, z, y, t);                                      \
        else panel_##T##_1(rows, m, d, ahead, z, y, t);                                                   \
        ahead = 0; /* once is enough */                                                            \
        z += d * nv * LANES;                                                                       \
        y += d * nv * LANES;                                                                       \
      }                                                                                            \
    }                                                                                              \
  }

/* Rows n of a CSR matrix times R columns of Z, (d, ld); Y, (d, ld), and the sums over the rows of
 * t = B Z - shift are kept in double. */
#define SPARSE(T, R)                                                                               \
  INLINE void sparse_##T##_##R(ptrdiff_t n, const int32_t *restrict start,                         \
                               const int32_t *restrict column, const T *restrict value,            \
                               ptrdiff_t ld, const T *restrict Z, const T *restrict shift,         \
                               double *restrict Y, double *restrict total) {                       \
    enum { F = R / 4 };                                                                            \
    for (ptrdiff_t i = 0; i < n; i++) {                                                            \
      T##4 s4[F + 1];                                                                              \
      T##2 s2 = {0};                                                                               \
      T s1 = 0;                                                                                    \
      for (int v = 0; v < F; v++) s4[v] = -*(const T##4 *)(shift + 4 * v);                         \
      if (R & 2) s2 = -*(const T##2 *)(shift + 4 * F);                                             \
      if (R & 1) s1 = -shift[R - 1];                                                               \
      for (int32_t k = start[i]; k < start[i + 1]; k++) {                                          \
        const T *z = Z + (ptrdiff_t)column[k] * ld;                                                \
        T a = value[k];                                                                            \
        for (int v = 0; v < F; v++) s4[v] += a * *(const T##4 *)(z + 4 * v);                       \
        if (R & 2) s2 += a * *(const T##2 *)(z + 4 * F);                                           \
        if (R & 1) s1 += a * z[R - 1];                                                             \
      }                                                                                            \
      double4 w4[F + 1];                                                                           \
      double2 w2 = __builtin_convertvector(s2, double2);                                           \
      double w1 = s1;                                                                              \
      for (int v = 0; v < F; v++) {                                                                \
        w4[v] = __builtin_convertvector(s4[v], double4);                                           \
        *(double4 *)(total + 4 * v) += w4[v];                                                      \
      }                                                                                            \
      if (R & 2) *(double2 *)(total + 4 * F) += w2;                                                \
      if (R & 1) total[R - 1] += w1;                                                               \
      for (int32_t k = start[i]; k < start[i + 1]; k++) {                                          \
        double *y = Y + (ptrdiff_t)column[k] * ld, a = value[k];                                   \
        for (int v = 0; v < F; v++) *(double4 *)(y + 4 * v) += a * w4[v];                          \
        if (R & 2) *(double2 *)(y + 4 * F) += a * w2;                                              \
        if (R & 1) y[R - 1] += a * w1;                                                             \
      }                                                                                            \
    }                                                                                              \
  }

#define EACH(X, T)                                                                                 \
  X(T, 1) X(T, 2) X(T, 3) X(T, 4) X(T, 5) X(T, 6) X(T, 7) X(T, 8)                                  \
  X(T, 9) X(T, 10) X(T, 11) X(T, 12) X(T, 13) X(T, 14) X(T, 15) X(T, 16)

#define CASE(T, R)                                                                                 \
  case R: sparse_##T##_##R(n, start, column, value, ld, Z + c, shift + c, Y + c, total + c); break;

/* `start` holds n + 1 places in `column` and `value`. */
#define CSR(T)                                                                                     \
  TARGET void csr_##T(ptrdiff_t n, const int32_t *start, const int32_t *column, const T *value,    \
                      ptrdiff_t ld, const T *Z, const T *shift, double *Y, double *total) {        \
    for (ptrdiff_t c = 0; c < ld; c += 16)                                                         \
      switch (ld - c < 16 ? ld - c : 16) { EACH(CASE, T) }                                         \
  }

/* Least and largest entry of each column of B; mean of each column of unit * B and the sum of squared
 * deviations from it: group by group, merged by Chan's formula. Returns whether all is finite. `work`
 * has room for 2d numbers. */
#define STATISTICS(T)                                                                              \
  TARGET int statistics_##T(const T *restrict B, ptrdiff_t n, ptrdiff_t d, double unit,            \
                            T *restrict low, T *restrict high, double *restrict mean,              \
                            double *restrict m2, double *restrict work) {                          \
    int bad = 0;                                                                                   \
    double *center = work, *square = work + d;                                                     \
    for (ptrdiff_t j = 0; j < d; j++) low[j] = high[j] = B[j], mean[j] = m2[j] = 0;                \
    for (ptrdiff_t i = 0; i < n; i += MAX_GROUP, B += MAX_GROUP * d) {                             \
      ptrdiff_t m = i + MAX_GROUP < n ? MAX_GROUP : n - i;                                         \
      for (ptrdiff_t j = 0; j < d; j++) center[j] = square[j] = 0;                                 \
      for (ptrdiff_t q = 0; q < m; q++)                                                            \
        for (ptrdiff_t j = 0; j < d; j++) {                                                        \
          T x = B[q * d + j];                                                                      \
          low[j] = x < low[j] ? x : low[j];                                                        \
          high[j] = x > high[j] ? x : high[j];                                                     \
          bad |= x - x != 0;                                                                       \
          center[j] += unit * x;                                                                   \
        }                                                                                          \
      for (ptrdiff_t j = 0; j < d; j++) center[j] /= m;                                            \
      for (ptrdiff_t q = 0; q < m; q++)                                                            \
        for (ptrdiff_t j = 0; j < d; j++) {                                                        \
          double x = unit * B[q * d + j] - center[j];                                              \
          square[j] += x * x;                                                                      \
        }                                                                                          \
      double share = (double)m / (i + m);                                                          \
      for (ptrdiff_t j = 0; j < d; j++) {                                                          \
        double delta = center[j] - mean[j];                                                        \
        mean[j] += share * delta;                                                                  \
        m2[j] += square[j] + i * share * delta * delta;                                            \
      }                                                                                            \
    }                                                                                              \
    return !bad;                                                                                   \
  }

/* How often a byte occurs; sums of a byte's width are what the machine adds fastest. */
TARGET ptrdiff_t occurrences(const uint8_t *text, ptrdiff_t n, uint8_t byte) {
  ptrdiff_t total = 0;
  for (ptrdiff_t first = 0; first < n; first += 255 * 32) {
    ptrdiff_t last = first + 255 * 32 < n ? first + 255 * 32 : n, i = first;
    uint8_t sums[32] = {0};
    for (; i + 32 <= last; i += 32)
      for (int q = 0; q < 32; q++) sums[q] += text[i + q] == byte;
    for (int q = 0; q < 32; q++) total += sums[q];
    for (; i < last; i++) total += text[i] == byte;
  }
  return total;
}

/* Where the fields of text end, `count` to a line: ends[2k] is the start of field k, ends[2k + 1]
 * its end. 0 if a line has another number of them, or a blank stands first or last in a field.
 * Eight bytes at a time: `hits` has the top bit of every byte that ends a field. */
TARGET int fields(const uint8_t *text, ptrdiff_t n, uint8_t delimiter, ptrdiff_t count, int32_t *ends) {
  const uint64_t low = 0x7f7f7f7f7f7f7f7f, one = 0x0101010101010101;
  ptrdiff_t column = 0;
  if (n && text[0] == ' ') return 0;
  *ends++ = 0;
  for (ptrdiff_t at = 0; at < n; at += 8) {
    uint64_t word = 0;
    if (at + 8 <= n) memcpy(&word, text + at, 8);
    else memcpy(&word, text + at, (size_t)(n - at));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    uint64_t a = word ^ one * delimiter, b = word ^ one * '\n';
    uint64_t hits = ~(((a & low) + low) | a | low) | ~(((b & low) + low) | b | low);
    for (; hits; hits &= hits - 1) {
      ptrdiff_t end = at + (__builtin_ctzll(hits) >> 3);
      if ((text[end] == '\n') != (++column == count)) return 0;
      if ((end && text[end - 1] == ' ') || (end + 1 < n && text[end + 1] == ' ')) return 0;
      if (column == count) column = 0;
      *ends++ = (int32_t)end;
      *ends++ = (int32_t)end + 1;
    }
  }
  return 1;
}

/* Columns, one after the other, to rows: out is (n, d). Long enough stretches of four columns for
 * the machine to foresee, short enough for the rows to stay in the cache. */
#define INTERLEAVE(T)                                                                              \
  TARGET void interleave_##T(const T *const *columns, ptrdiff_t n, ptrdiff_t d, T *restrict out) { \
    for (ptrdiff_t first = 0; first < n; first += TILE) {                                          \
      ptrdiff_t last = first + TILE < n ? first + TILE : n, j = 0;                                 \
      for (; j + 4 <= d; j += 4) {                                                                 \
        const T *a = columns[j], *b = columns[j + 1], *c = columns[j + 2], *e = columns[j + 3];    \
        for (ptrdiff_t i = first; i < last; i++)                                                   \
          *(T##4 *)(out + i * d + j) = (T##4){a[i], b[i], c[i], e[i]};                             \
      }                                                                                            \
      for (; j < d; j++)                                                                           \
        for (ptrdiff_t i = first; i < last; i++) out[i * d + j] = columns[j][i];                   \
    }                                                                                              \
  }

INTERLEAVE(double)
INTERLEAVE(float)
STATISTICS(double)
STATISTICS(float)
PANEL(double, double4, 4, 1, 8)
PANEL(double, double4, 4, 2, 6)
PANEL(double, double4, 4, 3, 4)
PANEL(float, float8, 8, 1, 8)
PANEL(float, float8, 8, 2, 6)
PANEL(float, float8, 8, 3, 4)
DENSE(double, 4)
DENSE(float, 8)
EACH(SPARSE, double)
EACH(SPARSE, float)
CSR(double)
CSR(float)
