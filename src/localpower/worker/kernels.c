/* The passes over a shard's rows that take the time: column statistics, products, B'B.
 *
 * The local product is Y += B'(B - 1s')Z for a block of rows, each read once for both factors.
 * Dense: a group of rows stays in the cache between the two products, while the next one is fetched.
 * Z and Y come in panels of up to three vectors of LANES numbers per row, so that ROWS rows times a
 * panel of sums fill the registers. Sparse: one row at a time; its sums stay in registers.
 * B'B is made of tiles that stay in registers over the rows of a group.
 * Equal rows would round a long sum the same way again and again. So sums of a tile of columns, and of
 * a span of rows, are made by themselves before they are added to others.
 * Vectors are GCC's and Clang's portable ones. On x86 the functions need AVX2, and there are others
 * for AVX-512; `vector_bytes` tells. Every number is summed in the same order by both.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#define TARGET __attribute__((target("avx2,fma")))
#define WIDE __attribute__((target("avx2,fma,avx512f,avx512vl,avx512dq")))
#define USABLE (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define HAS_WIDE                                                                                   \
  (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&                      \
   __builtin_cpu_supports("avx512dq"))
#else
#define TARGET
#define WIDE
#define USABLE 1
#define HAS_WIDE 0
#endif
#define INLINE static inline __attribute__((always_inline))

typedef double double8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef double double4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef double double1;
typedef double double2 __attribute__((vector_size(16), aligned(8), may_alias));
typedef float float16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float float8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float float4 __attribute__((vector_size(16), aligned(4), may_alias));

enum {
  TILE = 256,        /* columns whose part of a panel stays in the first-level cache */
  GROUP_BYTES = 1 << 18, /* rows between whose two products nothing else is read */
  MIN_GROUP = 12, MAX_GROUP = 48,
  SPAN = 96,         /* rows that are added in the type of the rows, at least */
  LONG_ROW = 8000,   /* columns */
  SPARE = 12,        /* rows that sums are padded with, at least ROWS of any panel */
  WIDEST = 48,       /* numbers of a row of any panel */
  EIGHT = 8,         /* numbers of a vector of double8 */
  SQUARED = 96,      /* rows that B'B is made of at a time, which are added by themselves */
};

/* Another number whenever arguments of a function change: `kernels.py` calls no older library. */
int kernel_interface(void) { return 4; }

/* Bytes of a vector; 0 if this machine cannot run what is here. */
int vector_bytes(void) { return !USABLE ? 0 : HAS_WIDE ? 64 : 32; }
ptrdiff_t scratch(ptrdiff_t d) { return (MAX_GROUP + SPARE) * WIDEST + MAX_GROUP * d; }
ptrdiff_t gram_scratch(ptrdiff_t d) { return SQUARED * (d + WIDEST); }

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

/* y += b[.][j] s, for one column j of ROWS rows */
#define BACKWARD(V, NV, ROWS, W, j)                                                                \
  {                                                                                                \
    V y[NV], *at = (V *)(Y + (j) * W);                                                             \
    for (int v = 0; v < NV; v++) y[v] = at[v];                                                     \
    for (int q = 0; q < ROWS; q++) {                                                               \
      V a = b[q][j] - (V){0};                                                                      \
      for (int v = 0; v < NV; v++) y[v] += a * s[q][v];                                            \
    }                                                                                              \
    for (int v = 0; v < NV; v++) at[v] = y[v];                                                     \
  }

/* EACH(j) for all columns of a tile and ROWS rows from i on, while lines of `soon` are fetched */
#define TILED(T, ROWS, FETCH, EACH, ...)                                                           \
  ptrdiff_t j = first;                                                                             \
  for (; j + LINE(T) <= last; j += LINE(T)) {                                                      \
    if (FETCH)                                                                                     \
      for (int q = 0; q < ROWS; q++) __builtin_prefetch(soon + (i + q) * d + j, 0, 2);             \
    for (int u = 0; u < LINE(T); u++) EACH(__VA_ARGS__, j + u)                                     \
  }                                                                                                \
  for (; j < last; j++) EACH(__VA_ARGS__, j)

/* One panel: t = B Z, then Y += B't. ROWS rows share every load of Z and of Y. Rows `soon`, as many,
 * are fetched meanwhile: those before `half` in the first pass, the others in the second. */
#define PANEL(T, V, LANES, NV, ROWS)                                                               \
  INLINE void panel_##V##_##NV(const T *restrict B, ptrdiff_t n, ptrdiff_t d, const T *soon,       \
                               ptrdiff_t half, const T *restrict Z, T *restrict Y,                 \
                               T *restrict t) {                                                    \
    enum { W = NV * LANES };                                                                       \
    for (ptrdiff_t c = 0; c < (n + ROWS) * W; c++) t[c] = 0;                                       \
    for (ptrdiff_t first = 0; first < d; first += TILE) {                                          \
      ptrdiff_t last = first + TILE < d ? first + TILE : d;                                        \
      for (ptrdiff_t i = 0; i < n; i += ROWS) {                                                    \
        const T *b[ROWS];                                                                          \
        V s[ROWS][NV], *sums = (V *)(t + i * W);                                                   \
        for (int q = 0; q < ROWS; q++) {                                                           \
          b[q] = B + (i + q < n ? i + q : i) * d;                                                  \
          for (int v = 0; v < NV; v++) s[q][v] = (V){0};                                           \
        }                                                                                          \
        TILED(T, ROWS, soon && i < half, FORWARD, V, NV, ROWS, W)                                  \
        for (int q = 0; q < ROWS; q++)                                                             \
          for (int v = 0; v < NV; v++) sums[q * NV + v] += s[q][v];                                \
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
        TILED(T, ROWS, soon && i >= half, BACKWARD, V, NV, ROWS, W)                                \
      }                                                                                            \
    }                                                                                              \
  }

/* B is (n, d), row after row; shift (d) or null; Z, Y and `sum` are panels one after the other,
 * `vectors` vectors in all. Y is zero before and after: it has the sum of a span, which goes to `sum`.
 * `work` has room for `scratch(d)` numbers. */
#define DENSE(NAME, ISA, T, V, LANES)                                                              \
  ISA void NAME(const T *B, ptrdiff_t n, ptrdiff_t d, const T *shift, int vectors, const T *Z,     \
                T *Y, double *sum, T *work) {                                                      \
    ptrdiff_t spanned = 0;                                                                         \
    T *t = work, *shifted = work + (MAX_GROUP + SPARE) * WIDEST;                                   \
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
      /* the machine does not foresee by itself where the next stretch of a row is read */         \
      const T *soon = i + 2 * group <= n && d < LONG_ROW ? B + group * d : NULL;                   \
      ptrdiff_t half = m / 2;                                                                      \
      if (d >= LONG_ROW && !shift) soon = B + TILE, half = m;                                      \
      for (int left = vectors; left > 0; left -= 3) {                                              \
        int nv = left < 3 ? left : 3;                                                              \
        if (nv == 3) panel_##V##_3(rows, m, d, soon, half, z, y, t);                               \
        else if (nv == 2) panel_##V##_2(rows, m, d, soon, half, z, y, t);                          \
        else panel_##V##_1(rows, m, d, soon, half, z, y, t);                                       \
        soon = NULL; /* once is enough */                                                          \
        z += d * nv * LANES;                                                                       \
        y += d * nv * LANES;                                                                       \
      }                                                                                            \
      spanned += m;                                                                                \
      if (spanned < SPAN && i + m < n) continue;                                                   \
      for (ptrdiff_t c = 0; c < d * vectors * LANES; c++) sum[c] += Y[c], Y[c] = 0;                \
      spanned = 0;                                                                                 \
    }                                                                                              \
  }

/* G += a'b for n rows of two panels: EIGHT columns of the one, NV vectors of the other. */
#define SQUARE(NV)                                                                                 \
  WIDE static void square_##NV(const double *restrict a, const double *restrict b, ptrdiff_t n,    \
                               double *restrict G, ptrdiff_t d, ptrdiff_t rows,                    \
                               ptrdiff_t columns) {                                                \
    double8 s[EIGHT][NV];                                                                          \
    for (int q = 0; q < EIGHT; q++)                                                                \
      for (int v = 0; v < NV; v++) s[q][v] = (double8){0};                                         \
    for (ptrdiff_t k = 0; k < n; k++, a += 3 * EIGHT, b += 3 * EIGHT) {                            \
      double8 z[NV];                                                                               \
      for (int v = 0; v < NV; v++) z[v] = ((const double8 *)b)[v];                                 \
      for (int q = 0; q < EIGHT; q++) {                                                            \
        double8 x = a[q] - (double8){0};                                                           \
        for (int v = 0; v < NV; v++) s[q][v] += x * z[v];                                          \
      }                                                                                            \
    }                                                                                              \
    if (rows >= EIGHT && columns >= NV * EIGHT) {                                                  \
      for (int q = 0; q < EIGHT; q++)                                                              \
        for (int v = 0; v < NV; v++) ((double8 *)(G + q * d))[v] += s[q][v];                       \
      return;                                                                                      \
    }                                                                                              \
    for (ptrdiff_t q = 0; q < EIGHT && q < rows; q++)                                              \
      for (ptrdiff_t c = 0; c < NV * EIGHT && c < columns; c++)                                    \
        G[q * d + c] += s[q][c / EIGHT][c % EIGHT];                                                \
  }

/* The upper half of G += (B - 1 shift')'(B - 1 shift'), (d, d), of B, (n, d), row after row, in
 * double; what is below the diagonal has no meaning. Rows are copied to panels of three vectors, for
 * which `work` has room: `gram_scratch(d)` numbers. For machines with AVX-512; to others BLAS does. */
#define GRAM(T)                                                                                    \
  WIDE void gram_##T(const T *B, ptrdiff_t n, ptrdiff_t d, const T *shift, double *G,              \
                     double *work) {                                                               \
    enum { W = 3 * EIGHT };                                                                        \
    for (ptrdiff_t i = 0; i < n; i += SQUARED, B += SQUARED * d) {                                 \
      ptrdiff_t m = i + SQUARED < n ? SQUARED : n - i;                                             \
      for (ptrdiff_t q = 0; q < m; q++)                                                            \
        for (ptrdiff_t j = 0; j < d; j += W) {                                                     \
          const T *row = B + q * d + j;                                                            \
          double *out = work + j * SQUARED + q * W;                                                \
          ptrdiff_t c = 0, left = d - j < W ? d - j : W;                                           \
          if (shift) for (; c < left; c++) out[c] = (double)row[c] - shift[j + c];                 \
          else for (; c < left; c++) out[c] = row[c];                                              \
          for (; c < W; c++) out[c] = 0;                                                           \
        }                                                                                          \
      for (ptrdiff_t j = 0; j < d; j += W)                                                         \
        for (ptrdiff_t r = 0; r < j + W && r < d; r += EIGHT) {                                    \
          ptrdiff_t first = r < j ? 0 : r - j, c = j + first; /* those before are below */         \
          ptrdiff_t left = d - j < W ? d - j : W;                                                  \
          const double *a = work + r / W * W * SQUARED + r % W, *b = work + j * SQUARED + first;   \
          int nv = (int)((left - first + EIGHT - 1) / EIGHT);                                      \
          if (nv == 3) square_3(a, b, m, G + r * d + c, d, d - r, d - c);                          \
          else if (nv == 2) square_2(a, b, m, G + r * d + c, d, d - r, d - c);                     \
          else square_1(a, b, m, G + r * d + c, d, d - r, d - c);                                  \
        }                                                                                          \
    }                                                                                              \
  }

/* A few columns of Z and of Y side by side, in double: row c of `near` is Z's EIGHT numbers and Y's,
 * row c of `tail` is Z's TAIL numbers and Y's, so that what the second product needs of a column is
 * brought to the cache by the first. The sums over the rows of t = B Z - shift go to `total`.
 * EIGHT numbers are N vectors V, which the machine has; TAIL numbers are M vectors U. */
#define GATHER(V, N, EIGHT, U, M, TAIL, k, s8, s)                                                  \
  {                                                                                                \
    ptrdiff_t c = column[k];                                                                       \
    double a = value[k];                                                                           \
    for (int v = 0; v < N; v++) s8[v] += a * ((const V *)(near + c * 2 * EIGHT))[v];               \
    for (int v = 0; v < M; v++) s[v] += a * ((const U *)(tail + c * 2 * TAIL))[v];                 \
  }

#define SPARSE(T, ISA, BYTES, V, N, EIGHT, U, M, TAIL)                                             \
  ISA static void sparse_##T##_##EIGHT##_##TAIL##_##BYTES(                                         \
      ptrdiff_t n, const int32_t *restrict start, const int32_t *restrict column,                  \
      const T *restrict value, const double *restrict shift, double *restrict near,                \
      double *restrict tail, double *restrict total) {                                             \
    V all8[N + 1] = {{0}};                                                                         \
    U all[M] = {0};                                                                                \
    for (ptrdiff_t i = 0; i < n; i++) {                                                            \
      V s8[N + 1], t8[N + 1]; /* two sums, so that none waits for the other */                     \
      U s[M], t[M];                                                                                \
      for (int v = 0; v < N; v++) s8[v] = -((const V *)shift)[v], t8[v] = (V){0};                  \
      for (int v = 0; v < M; v++) s[v] = -((const U *)(shift + EIGHT))[v], t[v] = (U){0};          \
      int32_t k = start[i], end = start[i + 1];                                                    \
      for (; k + 2 <= end; k += 2) {                                                               \
        GATHER(V, N, EIGHT, U, M, TAIL, k, s8, s)                                                  \
        GATHER(V, N, EIGHT, U, M, TAIL, k + 1, t8, t)                                              \
      }                                                                                            \
      if (k < end) GATHER(V, N, EIGHT, U, M, TAIL, k, s8, s)                                       \
      for (int v = 0; v < N; v++) s8[v] += t8[v], all8[v] += s8[v];                                \
      for (int v = 0; v < M; v++) s[v] += t[v], all[v] += s[v];                                    \
      for (k = start[i]; k < end; k++) {                                                           \
        ptrdiff_t c = column[k];                                                                   \
        double a = value[k];                                                                       \
        for (int v = 0; v < N; v++) ((V *)(near + c * 2 * EIGHT + EIGHT))[v] += a * s8[v];         \
        for (int v = 0; v < M; v++) ((U *)(tail + c * 2 * TAIL + TAIL))[v] += a * s[v];            \
      }                                                                                            \
    }                                                                                              \
    for (int v = 0; v < N; v++) ((V *)total)[v] += all8[v];                                        \
    for (int v = 0; v < M; v++) ((U *)(total + EIGHT))[v] += all[v];                               \
  }

#define CASE(T, BYTES, EIGHT, TAIL)                                                                \
  if (eight == EIGHT && width == TAIL)                                                             \
    sparse_##T##_##EIGHT##_##TAIL##_##BYTES(n, start, column, value, shift, near, tail, total);

/* `start` holds n + 1 places in `column` and `value`; `eight` is 8 or 0, `width` 1, 2, 4 or 8. */
#define CSR(T, ISA, BYTES, V, N)                                                                   \
  SPARSE(T, ISA, BYTES, V, 0, 0, double1, 1, 1) SPARSE(T, ISA, BYTES, V, 0, 0, double2, 1, 2)      \
  SPARSE(T, ISA, BYTES, V, 0, 0, double4, 1, 4) SPARSE(T, ISA, BYTES, V, 0, 0, V, N, 8)            \
  SPARSE(T, ISA, BYTES, V, N, 8, double1, 1, 1) SPARSE(T, ISA, BYTES, V, N, 8, double2, 1, 2)      \
  SPARSE(T, ISA, BYTES, V, N, 8, double4, 1, 4)                                                    \
  ISA void csr_##T##_##BYTES(ptrdiff_t n, const int32_t *start, const int32_t *column,             \
                             const T *value, int eight, int width, const double *shift,            \
                             double *near, double *tail, double *total) {                          \
    CASE(T, BYTES, 0, 1) CASE(T, BYTES, 0, 2) CASE(T, BYTES, 0, 4) CASE(T, BYTES, 0, 8)            \
    CASE(T, BYTES, 8, 1) CASE(T, BYTES, 8, 2) CASE(T, BYTES, 8, 4)                                 \
  }

/* Least and largest entry of each column of B; mean of each column of unit * B and the sum of squared
 * deviations from it: group by group, merged by Chan's formula. What is rounded off where groups are
 * added is kept: of sums it is added at last, of means before the next group. Returns whether all is
 * finite. `work` has room for 4d numbers. */
#define STATISTICS(T)                                                                              \
  TARGET int statistics_##T(const T *restrict B, ptrdiff_t n, ptrdiff_t d, double unit,            \
                            T *restrict low, T *restrict high, double *restrict mean,              \
                            double *restrict m2, double *restrict work) {                          \
    int bad = 0;                                                                                   \
    double *center = work, *square = work + d, *lost = work + 2 * d, *rest = work + 3 * d;         \
    for (ptrdiff_t j = 0; j < d; j++)                                                              \
      low[j] = high[j] = B[j], mean[j] = m2[j] = lost[j] = rest[j] = 0;                            \
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
        double delta = center[j] - mean[j] - rest[j], step = share * delta + rest[j];              \
        double before = mean[j];                                                                   \
        mean[j] = before + step;                                                                   \
        rest[j] = step - (mean[j] - before);                                                       \
        double more = square[j] + i * share * delta * delta, sum = m2[j] + more, part = sum - m2[j]; \
        lost[j] += (m2[j] - (sum - part)) + (more - part);                                         \
        m2[j] = sum;                                                                               \
      }                                                                                            \
    }                                                                                              \
    for (ptrdiff_t j = 0; j < d; j++) m2[j] += lost[j];                                            \
    return !bad;                                                                                   \
  }

/* Of each column of a CSR matrix with n entries: the least and the largest, how many, and their sum,
 * side by side in `out`, a row of four. Returns whether all are finite. */
#define ENTRIES(T)                                                                                 \
  TARGET int entries_##T(ptrdiff_t n, const int32_t *restrict column, const T *restrict value,     \
                         double *restrict out) {                                                   \
    int bad = 0;                                                                                   \
    for (ptrdiff_t k = 0; k < n; k++) {                                                            \
      double x = value[k], *of = out + 4 * (ptrdiff_t)column[k];                                   \
      of[0] = x < of[0] ? x : of[0];                                                               \
      of[1] = x > of[1] ? x : of[1];                                                               \
      of[2] += 1;                                                                                  \
      of[3] += x;                                                                                  \
      bad |= x - x != 0;                                                                           \
    }                                                                                              \
    return !bad;                                                                                   \
  }

/* Add the squared deviations of its entries from the mean of their column: `both` has rows of two,
 * the mean and the sum. */
#define DEVIATIONS(T)                                                                              \
  TARGET void deviations_##T(ptrdiff_t n, const int32_t *restrict column, const T *restrict value, \
                             double *restrict both) {                                              \
    for (ptrdiff_t k = 0; k < n; k++) {                                                            \
      double *of = both + 2 * (ptrdiff_t)column[k], x = value[k] - of[0];                          \
      of[1] += x * x;                                                                              \
    }                                                                                              \
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
ENTRIES(double)
ENTRIES(float)
DEVIATIONS(double)
DEVIATIONS(float)
STATISTICS(double)
STATISTICS(float)
PANEL(double, double4, 4, 1, 8)
PANEL(double, double4, 4, 2, 6)
PANEL(double, double4, 4, 3, 4)
PANEL(float, float8, 8, 1, 8)
PANEL(float, float8, 8, 2, 6)
PANEL(float, float8, 8, 3, 4)
PANEL(double, double8, 8, 1, 12)
PANEL(double, double8, 8, 2, 12)
PANEL(double, double8, 8, 3, 6)
PANEL(float, float16, 16, 1, 12)
PANEL(float, float16, 16, 2, 12)
PANEL(float, float16, 16, 3, 6)
DENSE(dense_double_32, TARGET, double, double4, 4)
DENSE(dense_float_32, TARGET, float, float8, 8)
DENSE(dense_double_64, WIDE, double, double8, 8)
DENSE(dense_float_64, WIDE, float, float16, 16)
SQUARE(1)
SQUARE(2)
SQUARE(3)
GRAM(double)
GRAM(float)
CSR(double, TARGET, 32, double4, 2)
CSR(float, TARGET, 32, double4, 2)
CSR(double, WIDE, 64, double8, 1)
CSR(float, WIDE, 64, double8, 1)
