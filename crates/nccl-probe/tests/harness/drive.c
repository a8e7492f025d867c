/* Plays a trace: each line of standard input is an action of NCCL. Ends with status 1 if a call does not return success.
 *
 *   version 22809                           what ncclGetVersion returns; before load
 *   load PATH ABI                           prints `loaded N`, the newest table of the plugin up to ABI
 *   init SLOT NAME HASH NODES RANKS RANK    creates a communicator
 *   coll SLOT SEQ FUNC COUNT DATATYPE CHANNELS START STOP    in nanoseconds of the GPU; channel c starts and stops c later, the
 *   p2p  SLOT PEER FUNC COUNT DATATYPE CHANNELS START STOP   last one stops at STOP; 0 0 for a kernel that reports nothing
 *   odd SLOT TYPE                           prints `odd null` or `odd handle`
 *   junk                                    handles that the plugin did not return
 *   mask                                    prints `mask N`
 *   flood SLOT N                            N collectives as fast as possible
 *   crowd SLOT THREADS N                    the same from several threads, with kernels; each thread has a slot from SLOT on
 *   fork                                    runs the remaining lines in a child; the parent waits for it
 *   sleep MS      final SLOT      unload
 */
#include "nccl.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 512 };
static void *contexts[SLOTS];
static uint64_t hashes[SLOTS];
static int ranks[SLOTS];
static int failed;

static void kernel(int slot, const Call *call, uint64_t start, uint64_t stop) {
  if (!(nccl_mask() & 1 << 6) || !call->parent || !stop) return;
  for (int c = 0; c < call->channels; c++)
    failed |= nccl_kernel(contexts[slot], call, c, start + (uint64_t)c, stop - (uint64_t)(call->channels - 1 - c));
}

static void call(int slot, Call call, int is_p2p, uint64_t start, uint64_t stop) {
  call.hash = hashes[slot];
  call.rank = ranks[slot];
  void *handle = (void *)1;
  failed |= is_p2p ? nccl_p2p(contexts[slot], &handle, &call) : nccl_coll(contexts[slot], &handle, &call);
  if (handle) failed |= nccl_stop(handle);
  call.parent = handle;
  kernel(slot, &call, start, stop);
}

typedef struct { int slot; long n; } Crowd;
static void *crowd(void *data) {
  Crowd *of = data;
  Call a = {.func = "AllReduce", .datatype = "ncclFloat32", .count = 1 << 20, .channels = 2};
  for (a.seq = 0; a.seq < (uint64_t)of->n; a.seq++) call(of->slot, a, 0, 1000, 5000);
  return NULL;
}

int main(void) {
  char line[4096], a[2048], b[256];
  int slot, x, y, z;
  unsigned long long n, start, stop, count;
  setvbuf(stdout, NULL, _IOLBF, 0);
  while (fgets(line, sizeof line, stdin)) {
    Call c = {0};
    if (sscanf(line, "version %d", &x) == 1) nccl_version(x);
    else if (sscanf(line, "load %2047s %d", a, &x) == 2) printf("loaded %d\n", nccl_load(a, x));
    else if (sscanf(line, "init %d %255s %llx %d %d %d", &slot, b, &n, &x, &y, &z) == 6) {
      hashes[slot] = n;
      ranks[slot] = z;
      failed |= nccl_init(&contexts[slot], b, n, x, y, z);
    } else if (sscanf(line, "coll %d %llu %255s %llu %2047s %d %llu %llu", &slot, &n, b, &count, a, &c.channels, &start, &stop) == 8) {
      c.seq = n, c.func = b, c.datatype = a, c.count = count;
      call(slot, c, 0, start, stop);
    } else if (sscanf(line, "p2p %d %d %255s %llu %2047s %d %llu %llu", &slot, &c.peer, b, &count, a, &c.channels, &start, &stop) == 8) {
      c.func = b, c.datatype = a, c.count = count;
      call(slot, c, 1, start, stop);
    } else if (sscanf(line, "odd %d %llu", &slot, &n) == 2) {
      void *handle = (void *)1;
      failed |= nccl_odd(contexts[slot], &handle, n);
      printf("odd %s\n", handle ? "handle" : "null");
    } else if (!strcmp(line, "junk\n")) {
      uintptr_t handles[] = {0, 1, 2, 3, 7, 0x1001, 0xdeadbeef, ~(uintptr_t)0};
      for (size_t h = 0; h < sizeof handles / sizeof *handles; h++) {
        uint64_t timer = 5;
        void *handle = (void *)handles[h];
        failed |= nccl_stop(handle) | nccl_record(handle, 22, &timer) | nccl_record(handle, 22, NULL) | nccl_finalize(handle);
        failed |= nccl_kernel(contexts[0], &(Call){.parent = handle}, 0, 1, 2);
      }
    } else if (!strcmp(line, "mask\n")) printf("mask %d\n", nccl_mask());
    else if (sscanf(line, "flood %d %llu", &slot, &n) == 2) {
      for (c.seq = 0, c.func = "AllReduce", c.datatype = "ncclFloat32", c.count = 1, c.channels = 1; c.seq < n; c.seq++)
        call(slot, c, 0, 0, 0);
    } else if (sscanf(line, "crowd %d %d %llu", &slot, &x, &n) == 3) {
      pthread_t threads[64];
      Crowd of[64];
      for (y = 0; y < x; y++) {
        of[y] = (Crowd){.slot = slot + y, .n = (long)n};
        pthread_create(&threads[y], NULL, crowd, &of[y]);
      }
      for (y = 0; y < x; y++) pthread_join(threads[y], NULL);
    } else if (!strcmp(line, "fork\n")) {
      pid_t child = fork();
      if (child) {
        int status = 1;
        waitpid(child, &status, 0);
        return status != 0 || failed;
      }
    } else if (sscanf(line, "sleep %d", &x) == 1) usleep((useconds_t)x * 1000);
    else if (sscanf(line, "final %d", &slot) == 1) failed |= nccl_finalize(contexts[slot]);
    else if (!strcmp(line, "unload\n")) failed |= nccl_unload();
    else {
      fprintf(stderr, "not understood: %s", line);
      return 2;
    }
  }
  return failed ? 1 : 0;
}
