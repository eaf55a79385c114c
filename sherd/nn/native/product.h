// The product that everything is made of: a tile of a few rows and one to four vectors of columns, whose sums
// stay in registers.
//
//     out[row][column] (+)= a[row][k] * b[k][column]
//
// Rows are wherever their pointers say, and the k lie in `runs` runs of `count`, so that what a kernel sees of
// an image is read where it is.
#pragma once
#include <stdint.h>

// As many sums as registers hold: rows x vectors.
#if defined(__AVX512F__)
enum { LANES = 16, WIDEST = 4 };
#define ROWS(vectors) ((vectors) == 4 ? 6 : 12)
#else
enum { LANES = 8, WIDEST = 2 };
#define ROWS(vectors) 6
#endif
enum { MOST_ROWS = 12 };

typedef float vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

typedef struct {
  int64_t count, runs, a_next, a_run, b_next, b_run;
} Inner;

static inline __attribute__((always_inline)) void tile(const int rows, const int vectors, const int add,
                                                       const Inner inner, const float *const *a,
                                                       const float *b, float *const *out, int64_t column) {
  vector sums[MOST_ROWS][WIDEST];
#pragma GCC unroll 12
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
      sums[row][v] = add ? *(const vector *)(out[row] + column + v * LANES) : (vector){0};
  for (int64_t run = 0; run < inner.runs; run++) {
    const float *right = b + run * inner.b_run + column;
    int64_t at = run * inner.a_run;
    for (int64_t k = 0; k < inner.count; k++, right += inner.b_next, at += inner.a_next) {
      vector columns[WIDEST];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++) columns[v] = *(const vector *)(right + v * LANES);
#pragma GCC unroll 12
      for (int row = 0; row < rows; row++) {
        const float left = a[row][at];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[row][v] += left * columns[v];
      }
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) *(vector *)(out[row] + column + v * LANES) = sums[row][v];
}

// The compiler makes a function of each size, since it must know which registers to use.
#define CASE(rows, vectors)                                                                                 \
  case rows:                                                                                                \
    if (rows > ROWS(vectors)) break;                                                                        \
    if (add)                                                                                                \
      tile(rows, vectors, 1, inner, a, b, out, column);                                                     \
    else                                                                                                    \
      tile(rows, vectors, 0, inner, a, b, out, column);                                                     \
    break;
#define COLUMNS(vectors)                                                                                    \
  static void columns_##vectors(int rows, int add, Inner inner, const float *const *a, const float *b,      \
                                float *const *out, int64_t column) {                                        \
    switch (rows) {                                                                                         \
      CASE(1, vectors) CASE(2, vectors) CASE(3, vectors) CASE(4, vectors) CASE(5, vectors) CASE(6, vectors) \
      CASE(7, vectors) CASE(8, vectors) CASE(9, vectors) CASE(10, vectors) CASE(11, vectors)                \
      CASE(12, vectors)                                                                                     \
    }                                                                                                       \
  }
#if defined(__AVX512F__)
COLUMNS(4)
#endif
COLUMNS(2)
COLUMNS(1)

// How many vectors are computed at a time where so many columns are left.
static int widest(int64_t columns) {
  int vectors = WIDEST;
  while (vectors * LANES > columns) vectors /= 2;
  return vectors;
}

static void some_rows(int vectors, int rows, int add, Inner inner, const float *const *a, const float *b,
                      float *const *out, int64_t column) {
#if defined(__AVX512F__)
  if (vectors == 4) return columns_4(rows, add, inner, a, b, out, column);
#endif
  if (vectors == 2) return columns_2(rows, add, inner, a, b, out, column);
  columns_1(rows, add, inner, a, b, out, column);
}
