// Convolutions for CPUs, called by XLA (its foreign function interface): [batch, height, width, channels].
//
// Three functions of two arrays each, which are each other's derivatives: images convolved with a kernel, the
// gradient with respect to the images, and with respect to the kernel. Nothing is padded, and the stride is
// the same in both directions.
//
// All three are made of one small product, whose sums stay in registers. What a kernel looks at lies in the
// image as it is needed, row by row, so that no patches are written out. What a number is the sum of, and in
// which order, depends neither on the batch around it nor on threads, so that every distribution policy gives
// the same bits.
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

#include "xla/ffi/api/c_api.h"

// As many sums as registers hold: rows x vectors.
#if defined(__AVX512F__)
enum { LANES = 16, WIDEST = 4 };
#define ROWS(vectors) ((vectors) == 4 ? 6 : 12)
#else
enum { LANES = 8, WIDEST = 2 };
#define ROWS(vectors) 6
#endif
// Gradients of a kernel are summed in so many parts, whatever the number of threads. A thread works on so
// many floats of the images at a time, which its cache holds.
enum { MOST_ROWS = 12, PARTS = 8, CHUNK = 1 << 16 };
// Another thread is asked for help if it saves so many multiplications, some twenty microseconds; and whoever
// waits for it looks so often before going to sleep, which takes longer than most waits.
enum { WORTH_HELP = 1 << 20, LOOKS = 1 << 12 };

typedef float vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

// ---------------------------------------------------------------------------------------------------------
// The product: out[row][column] (+)= a[row][k] * b[k][column]. The k lie in `runs` runs of `count`.

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
#define CASE(rows, vectors)                                                  \
  case rows:                                                                 \
    if (rows > ROWS(vectors)) break;                                         \
    if (add)                                                                 \
      tile(rows, vectors, 1, inner, a, b, out, column);                      \
    else                                                                     \
      tile(rows, vectors, 0, inner, a, b, out, column);                      \
    break;
#define COLUMNS(vectors)                                                                                     \
  static void columns_##vectors(int rows, int add, Inner inner, const float *const *a, const float *b,       \
                                float *const *out, int64_t column) {                                         \
    switch (rows) {                                                                                          \
      CASE(1, vectors) CASE(2, vectors) CASE(3, vectors) CASE(4, vectors) CASE(5, vectors) CASE(6, vectors)  \
      CASE(7, vectors) CASE(8, vectors) CASE(9, vectors) CASE(10, vectors) CASE(11, vectors)                 \
      CASE(12, vectors)                                                                                      \
    }                                                                                                        \
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

// ---------------------------------------------------------------------------------------------------------
// Convolutions of some images

typedef struct {
  int64_t batch, height, width, channels, size, stride, out_height, out_width, outputs;
} Sizes;

static int64_t image_floats(const Sizes *s) { return s->height * s->width * s->channels; }
static int64_t made_floats(const Sizes *s) { return s->out_height * s->out_width * s->outputs; }
static int64_t kernel_floats(const Sizes *s) { return s->size * s->size * s->channels * s->outputs; }

static void convolve(const Sizes *s, int64_t count, const float *images, const float *kernel, float *made) {
  const int64_t each = s->out_height * s->out_width, all = count * each, line = s->width * s->channels;
  const Inner inner = {s->size * s->channels,          s->size, 1, line, s->outputs,
                       s->size * s->channels * s->outputs};
  for (int64_t column = 0; column < s->outputs;) {
    const int vectors = widest(s->outputs - column);
    for (int64_t first = 0; first < all; first += ROWS(vectors)) {
      const float *a[MOST_ROWS];
      float *out[MOST_ROWS];
      int rows = 0;
      for (; rows < ROWS(vectors) && first + rows < all; rows++) {
        const int64_t image = (first + rows) / each, place = (first + rows) % each;
        const int64_t y = place / s->out_width * s->stride, x = place % s->out_width * s->stride;
        a[rows] = images + image * image_floats(s) + y * line + x * s->channels;
        out[rows] = made + (first + rows) * s->outputs;
      }
      some_rows(vectors, rows, 0, inner, a, kernel, out, column);
    }
    column += vectors * LANES;
  }
}

// `turned` is the kernel as [size, size, outputs, channels].
static void add_to_images(const Sizes *s, int64_t count, const float *gradients, const float *turned,
                          float *images) {
  const int64_t each = s->out_height * s->out_width, all = count * each;
  const Inner inner = {s->outputs, 1, 1, 0, s->channels, 0};
  memset(images, 0, count * image_floats(s) * sizeof(float));
  for (int64_t column = 0; column < s->channels;) {
    const int vectors = widest(s->channels - column);
    for (int64_t pixel = 0; pixel < s->size * s->size; pixel++)
      for (int64_t first = 0; first < all; first += ROWS(vectors)) {
        const float *a[MOST_ROWS];
        float *out[MOST_ROWS];
        int rows = 0;
        for (; rows < ROWS(vectors) && first + rows < all; rows++) {
          const int64_t image = (first + rows) / each, place = (first + rows) % each;
          const int64_t y = place / s->out_width * s->stride + pixel / s->size;
          const int64_t x = place % s->out_width * s->stride + pixel % s->size;
          a[rows] = gradients + (first + rows) * s->outputs;
          out[rows] = images + image * image_floats(s) + (y * s->width + x) * s->channels;
        }
        some_rows(vectors, rows, 1, inner, a, turned + pixel * s->outputs * s->channels, out, column);
      }
    column += vectors * LANES;
  }
}

static void add_to_kernel(const Sizes *s, int64_t count, const float *images, const float *gradients,
                          float *kernel) {
  const int64_t line = s->width * s->channels, run = s->size * s->channels;
  const Inner inner = {s->out_width,   s->out_height, s->stride * s->channels,
                       s->stride * line, s->outputs,    s->out_width * s->outputs};
  for (int64_t column = 0; column < s->outputs;) {
    const int vectors = widest(s->outputs - column);
    for (int64_t y = 0; y < s->size; y++)
      for (int64_t first = 0; first < run; first += ROWS(vectors)) {
        const int64_t rows = run - first < ROWS(vectors) ? run - first : ROWS(vectors);
        float *out[MOST_ROWS];
        for (int row = 0; row < rows; row++) out[row] = kernel + (y * run + first + row) * s->outputs;
        for (int64_t image = 0; image < count; image++) {
          const float *a[MOST_ROWS];
          for (int row = 0; row < rows; row++)
            a[row] = images + image * image_floats(s) + y * line + first + row;
          some_rows(vectors, rows, 1, inner, a, gradients + image * made_floats(s), out, column);
        }
      }
    column += vectors * LANES;
  }
}

// ---------------------------------------------------------------------------------------------------------
// Threads: XLA's. Whoever called works too, and waits for nothing but parts that somebody has begun.

typedef struct Work Work;
struct Work {
  void (*part)(const Work *work, int64_t number);
  Sizes sizes;
  const void *left, *right;
  float *out, *scratch;
  int bytes;  // the images are bytes, not floats
  int64_t parts;
  atomic_llong next, done;
  atomic_int holders;  // whoever has not forgotten this yet
  pthread_mutex_t lock;
  pthread_cond_t finished;
};

static void do_parts(Work *work) {
  const unsigned int mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);  // what is next to zero is zero, as in XLA's own kernels
  int64_t made = 0;
  for (int64_t number; (number = atomic_fetch_add(&work->next, 1)) < work->parts; made++)
    work->part(work, number);
  _mm_setcsr(mode);
  if (!made) return;
  pthread_mutex_lock(&work->lock);
  if (atomic_fetch_add(&work->done, made) + made == work->parts) pthread_cond_signal(&work->finished);
  pthread_mutex_unlock(&work->lock);
}

static void forget(Work *work) {
  if (atomic_fetch_sub(&work->holders, 1) > 1) return;
  pthread_mutex_destroy(&work->lock);
  pthread_cond_destroy(&work->finished);
  free(work);
}

static void help(void *data) {
  do_parts(data);
  forget(data);
}

static int failed(const XLA_FFI_Api *api, XLA_FFI_Error *error) {
  if (!error) return 0;
  XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, NULL, error};
  api->XLA_FFI_Error_Destroy(&args);
  return 1;
}

static void share(const XLA_FFI_CallFrame *frame, Work *work) {
  int64_t threads = 1;
  XLA_FFI_ThreadPool_NumThreads_Args ask = {XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, NULL, frame->ctx,
                                            &threads};
  if (failed(frame->api, frame->api->XLA_FFI_ThreadPool_NumThreads(&ask))) threads = 1;
  if (threads > work->parts) threads = work->parts;
  const Sizes *s = &work->sizes;
  const int64_t helpers = s->batch * s->out_height * s->out_width * kernel_floats(s) / WORTH_HELP;
  if (threads > 1 + helpers) threads = 1 + helpers;
  atomic_init(&work->next, 0);
  atomic_init(&work->holders, 1);
  pthread_mutex_init(&work->lock, NULL);
  pthread_cond_init(&work->finished, NULL);
  for (int64_t helper = 1; helper < threads; helper++) {
    XLA_FFI_ThreadPool_Schedule_Args task = {XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, NULL, frame->ctx,
                                             help, work};
    atomic_fetch_add(&work->holders, 1);
    if (failed(frame->api, frame->api->XLA_FFI_ThreadPool_Schedule(&task))) forget(work);
  }
  do_parts(work);
  for (int look = 0; look < LOOKS && atomic_load(&work->done) < work->parts; look++) _mm_pause();
  pthread_mutex_lock(&work->lock);
  while (atomic_load(&work->done) < work->parts) pthread_cond_wait(&work->finished, &work->lock);
  pthread_mutex_unlock(&work->lock);
  forget(work);
}

// ---------------------------------------------------------------------------------------------------------
// Parts of a batch, and what XLA calls

static int64_t begin_of(const Work *work, int64_t part) { return part * work->sizes.batch / work->parts; }

static int64_t images_at_a_time(const Sizes *s) {
  const int64_t fit = CHUNK / image_floats(s);
  return fit < 1 ? 1 : fit;
}

// Some images as floats: where they are, or from bytes into memory that the thread keeps.
static const float *floats(const Work *work, int64_t first, int64_t count) {
  static _Thread_local float *kept;
  static _Thread_local int64_t room;
  const int64_t each = image_floats(&work->sizes), wanted = count * each;
  if (!work->bytes) return (const float *)work->left + first * each;
  if (room < wanted) {
    free(kept);
    kept = malloc(wanted * sizeof(float));
    room = wanted;
  }
  const uint8_t *bytes = (const uint8_t *)work->left + first * each;
  for (int64_t place = 0; place < wanted; place++) kept[place] = bytes[place];
  return kept;
}

#define CHUNKS(work, part)                                                                          \
  for (int64_t first = begin_of(work, part), end = begin_of(work, part + 1),                        \
               count = images_at_a_time(&work->sizes);                                              \
       (count = end - first < count ? end - first : count) > 0; first += count)

static void part_of_convolution(const Work *work, int64_t part) {
  CHUNKS(work, part)
  convolve(&work->sizes, count, floats(work, first, count), work->right,
           work->out + first * made_floats(&work->sizes));
}

static void part_of_images(const Work *work, int64_t part) {
  CHUNKS(work, part)
  add_to_images(&work->sizes, count, (const float *)work->left + first * made_floats(&work->sizes),
                work->scratch, work->out + first * image_floats(&work->sizes));
}

static void part_of_kernel(const Work *work, int64_t part) {
  float *sums = work->scratch + part * kernel_floats(&work->sizes);
  memset(sums, 0, kernel_floats(&work->sizes) * sizeof(float));
  CHUNKS(work, part)
  add_to_kernel(&work->sizes, count, floats(work, first, count),
                (const float *)work->right + first * made_floats(&work->sizes), sums);
}

static XLA_FFI_Buffer *argument(XLA_FFI_CallFrame *frame, int number) { return frame->args.args[number]; }
static XLA_FFI_Buffer *result(XLA_FFI_CallFrame *frame, int number) { return frame->rets.rets[number]; }

// What JAX asks first: which version this was compiled for.
static int told_version(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Extension_Base *extension = frame->extension_start;
  if (!extension || extension->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  return 1;
}

static Work *begin(XLA_FFI_CallFrame *frame, const XLA_FFI_Buffer *images, const XLA_FFI_Buffer *kernel,
                   const XLA_FFI_Buffer *made) {
  Work *work = calloc(1, sizeof(Work));
  work->sizes = (Sizes){images->dims[0], images->dims[1], images->dims[2], images->dims[3], kernel->dims[0],
                        0,               made->dims[1],   made->dims[2],   made->dims[3]};
  work->sizes.stride = *(int64_t *)((XLA_FFI_Scalar *)frame->attrs.attrs[0])->value;
  work->bytes = images->dtype == XLA_FFI_DataType_U8;
  work->parts = work->sizes.batch < PARTS ? work->sizes.batch : PARTS;
  return work;
}

XLA_FFI_Error *sherd_convolve(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  Work *work = begin(frame, argument(frame, 0), argument(frame, 1), result(frame, 0));
  work->part = part_of_convolution;
  work->left = argument(frame, 0)->data;
  work->right = argument(frame, 1)->data;
  work->out = result(frame, 0)->data;
  share(frame, work);
  return NULL;
}

// (gradients, kernel) -> (images, the turned kernel)
XLA_FFI_Error *sherd_convolve_images(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  Work *work = begin(frame, result(frame, 0), argument(frame, 1), argument(frame, 0));
  const Sizes *s = &work->sizes;
  const float *kernel = argument(frame, 1)->data;
  work->part = part_of_images;
  work->left = argument(frame, 0)->data;
  work->scratch = result(frame, 1)->data;
  work->out = result(frame, 0)->data;
  for (int64_t pixel = 0; pixel < s->size * s->size; pixel++)
    for (int64_t channel = 0; channel < s->channels; channel++)
      for (int64_t output = 0; output < s->outputs; output++)
        work->scratch[(pixel * s->outputs + output) * s->channels + channel] = *kernel++;
  share(frame, work);
  return NULL;
}

// (images, gradients) -> (kernel, its parts)
XLA_FFI_Error *sherd_convolve_kernel(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  Work *work = begin(frame, argument(frame, 0), result(frame, 0), argument(frame, 1));
  const int64_t parts = work->parts, each = kernel_floats(&work->sizes);
  float *out = result(frame, 0)->data, *sums = result(frame, 1)->data;
  work->part = part_of_kernel;
  work->left = argument(frame, 0)->data;
  work->right = argument(frame, 1)->data;
  work->scratch = sums;
  share(frame, work);
  memcpy(out, sums, each * sizeof(float));
  for (int64_t part = 1; part < parts; part++)
    for (int64_t place = 0; place < each; place++) out[place] += sums[part * each + place];
  return NULL;
}
