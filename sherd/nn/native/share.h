// Work in parts, shared out over XLA's threads. Whoever called works too, and waits for nothing but parts that
// somebody has begun.
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <xmmintrin.h>

#include "xla/ffi/api/c_api.h"

// Another thread is asked for help if it saves so many multiplications, some twenty microseconds; and whoever
// waits for it looks so often before going to sleep, which takes longer than most waits.
enum { WORTH_HELP = 1 << 20, LOOKS = 1 << 12 };

typedef struct {
  void (*part)(const void *job, int64_t number);
  const void *job;  // whoever called keeps it until all parts are done
  int64_t parts;
  atomic_llong next, done;
  atomic_int holders;  // whoever has not forgotten this yet
  pthread_mutex_t lock;
  pthread_cond_t finished;
} Work;

static void do_parts(Work *work) {
  const unsigned int mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);  // what is next to zero is zero, as in XLA's own kernels
  int64_t made = 0;
  for (int64_t number; (number = atomic_fetch_add(&work->next, 1)) < work->parts; made++)
    work->part(work->job, number);
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

// Do all parts of a job, which has so many multiplications.
static void share(const XLA_FFI_CallFrame *frame, void (*part)(const void *, int64_t), const void *job,
                  int64_t parts, int64_t multiplications) {
  int64_t threads = 1;
  XLA_FFI_ThreadPool_NumThreads_Args ask = {XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, NULL, frame->ctx,
                                            &threads};
  if (failed(frame->api, frame->api->XLA_FFI_ThreadPool_NumThreads(&ask))) threads = 1;
  if (threads > parts) threads = parts;
  if (threads > 1 + multiplications / WORTH_HELP) threads = 1 + multiplications / WORTH_HELP;
  Work *work = calloc(1, sizeof(Work));
  work->part = part;
  work->job = job;
  work->parts = parts;
  atomic_init(&work->next, 0);
  atomic_init(&work->done, 0);
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
  for (int look = 0; look < LOOKS && atomic_load(&work->done) < parts; look++) _mm_pause();
  pthread_mutex_lock(&work->lock);
  while (atomic_load(&work->done) < parts) pthread_cond_wait(&work->finished, &work->lock);
  pthread_mutex_unlock(&work->lock);
  forget(work);
}
