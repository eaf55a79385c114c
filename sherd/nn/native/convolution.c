// Convolutions for CPUs, called by XLA (its foreign function interface): [batch, height, width, channels].
//
// Three functions of two arrays each, which are each other's derivatives: images convolved with a kernel, the
// gradient with respect to the images, and with respect to the kernel. Nothing is padded, and the stride is
// the same in both directions.
//
// All three are made of one small product, whose sums stay in registers. What a kernel looks at lies in the
// image as it is needed, row by row, so that no patches are written out. How many threads there are never shows
// in a bit, and what is made of an image depends on nothing else in its batch, so that processes that share the
// work can give the same bits as one.
#include <string.h>

#include "product.h"
#include "share.h"

// Gradients of a kernel are summed in so many parts, whatever the number of threads. A thread works on so
// many floats of the images at a time, which its cache holds.
enum { PARTS = 8, CHUNK = 1 << 16 };

typedef struct {
  int64_t batch, height, width, channels, size, stride, out_height, out_width, outputs;
} Sizes;

static int64_t image_floats(const Sizes *s) { return s->height * s->width * s->channels; }
static int64_t made_floats(const Sizes *s) { return s->out_height * s->out_width * s->outputs; }
static int64_t kernel_floats(const Sizes *s) { return s->size * s->size * s->channels * s->outputs; }

static void convolve(const Sizes *s, int64_t count, const float *images, const float *kernel, float *made) {
  const int64_t each = s->out_height * s->out_width, all = count * each, line = s->width * s->channels;
  const int64_t run = s->size * s->channels;
  const Inner inner = {run, s->size, 1, line, s->outputs, run * s->outputs};
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
// Parts of a batch

typedef struct {
  Sizes sizes;
  const void *images;  // bytes or floats
  const float *kernel, *gradients;
  float *out;      // what is made
  float *scratch;  // the turned kernel, or the parts of a kernel's gradient
  int bytes;
  int64_t parts;
} Job;

static int64_t begin_of(const Job *job, int64_t part) { return part * job->sizes.batch / job->parts; }

static int64_t images_at_a_time(const Job *job) {
  const int64_t fit = CHUNK / image_floats(&job->sizes);
  return fit < 1 ? 1 : fit;
}

// Some images as floats: where they are, or from bytes into memory that the thread keeps.
static const float *floats(const Job *job, int64_t first, int64_t count) {
  static _Thread_local float *kept;
  static _Thread_local int64_t room;
  const int64_t each = image_floats(&job->sizes), wanted = count * each;
  if (!job->bytes) return (const float *)job->images + first * each;
  if (room < wanted) {
    free(kept);
    kept = malloc(wanted * sizeof(float));
    room = wanted;
  }
  const uint8_t *bytes = (const uint8_t *)job->images + first * each;
  for (int64_t place = 0; place < wanted; place++) kept[place] = bytes[place];
  return kept;
}

#define CHUNKS(job, part)                                                                                    \
  for (int64_t first = begin_of(job, part), end = begin_of(job, part + 1), count = images_at_a_time(job);    \
       (count = end - first < count ? end - first : count) > 0; first += count)

static void part_of_convolution(const void *data, int64_t part) {
  const Job *job = data;
  CHUNKS(job, part)
  convolve(&job->sizes, count, floats(job, first, count), job->kernel,
           job->out + first * made_floats(&job->sizes));
}

static void part_of_images(const void *data, int64_t part) {
  const Job *job = data;
  CHUNKS(job, part)
  add_to_images(&job->sizes, count, job->gradients + first * made_floats(&job->sizes), job->scratch,
                job->out + first * image_floats(&job->sizes));
}

static void part_of_kernel(const void *data, int64_t part) {
  const Job *job = data;
  float *sums = job->scratch + part * kernel_floats(&job->sizes);
  memset(sums, 0, kernel_floats(&job->sizes) * sizeof(float));
  CHUNKS(job, part)
  add_to_kernel(&job->sizes, count, floats(job, first, count),
                job->gradients + first * made_floats(&job->sizes), sums);
}

// ---------------------------------------------------------------------------------------------------------
// What XLA calls

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

static Job job_of(XLA_FFI_CallFrame *frame, const XLA_FFI_Buffer *images, const XLA_FFI_Buffer *kernel,
                  const XLA_FFI_Buffer *made) {
  const int64_t stride = *(int64_t *)((XLA_FFI_Scalar *)frame->attrs.attrs[0])->value;
  const Sizes sizes = {images->dims[0], images->dims[1], images->dims[2], images->dims[3], kernel->dims[0],
                       stride,          made->dims[1],   made->dims[2],   made->dims[3]};
  return (Job){.sizes = sizes,
               .images = images->data,
               .kernel = kernel->data,
               .gradients = made->data,
               .bytes = images->dtype == XLA_FFI_DataType_U8,
               .parts = sizes.batch < PARTS ? sizes.batch : PARTS};
}

static void do_job(const XLA_FFI_CallFrame *frame, void (*part)(const void *, int64_t), const Job *job) {
  const Sizes *s = &job->sizes;
  share(frame, part, job, job->parts, s->batch * s->out_height * s->out_width * kernel_floats(s));
}

XLA_FFI_Error *sherd_convolve(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  Job job = job_of(frame, argument(frame, 0), argument(frame, 1), result(frame, 0));
  job.out = result(frame, 0)->data;
  do_job(frame, part_of_convolution, &job);
  return NULL;
}

// (gradients, kernel) -> (images, the turned kernel)
XLA_FFI_Error *sherd_convolve_images(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  Job job = job_of(frame, result(frame, 0), argument(frame, 1), argument(frame, 0));
  const Sizes *s = &job.sizes;
  const float *number = job.kernel;
  job.out = result(frame, 0)->data;
  job.scratch = result(frame, 1)->data;
  for (int64_t pixel = 0; pixel < s->size * s->size; pixel++)
    for (int64_t channel = 0; channel < s->channels; channel++)
      for (int64_t output = 0; output < s->outputs; output++)
        job.scratch[(pixel * s->outputs + output) * s->channels + channel] = *number++;
  do_job(frame, part_of_images, &job);
  return NULL;
}

// (images, gradients) -> (kernel, its parts)
XLA_FFI_Error *sherd_convolve_kernel(XLA_FFI_CallFrame *frame) {
  if (told_version(frame)) return NULL;
  Job job = job_of(frame, argument(frame, 0), result(frame, 0), argument(frame, 1));
  const int64_t each = kernel_floats(&job.sizes);
  float *out = result(frame, 0)->data;
  job.scratch = result(frame, 1)->data;
  do_job(frame, part_of_kernel, &job);
  memset(out, 0, each * sizeof(float));
  for (int64_t part = 0; part < job.parts; part++)
    for (int64_t place = 0; place < each; place++) out[place] += job.scratch[part * each + place];
  return NULL;
}
