/* Does what NCCL does with a profiler plugin, and nothing else: finds the newest table of a plugin, and calls it with the
 * structs of that version. The layouts are those of the published interface; the assertions check their sizes. Built as a shared
 * library, as NCCL is, because the plugin gets the version from the library that contains the mask. */
#include "nccl.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define COLL(...) struct { __VA_ARGS__ } coll
#define P2P(...) struct { __VA_ARGS__ } p2p
#define KERNEL struct { uint8_t channel; uint64_t timer; } kernel
#define PROXY struct { int pid; uint8_t channel; int peer, steps, chunk, is_send; } proxy
#define DESCRIPTOR(VERSION, TYPE, ...) \
  typedef struct { TYPE type; void *parent; int rank; union { __VA_ARGS__ }; } D##VERSION
#define NAMED const char *name; uint64_t hash;
#define BUFFERS const void *send; void *recv;

DESCRIPTOR(1, uint8_t, COLL(NAMED uint64_t seq; uint8_t func; BUFFERS size_t count; int root; uint8_t datatype; uint32_t op;
    size_t traffic; uint8_t channels, warps, algo, proto; int collnet, nvls;);
  P2P(NAMED uint8_t func; void *buff; uint8_t datatype; size_t count; int peer;); PROXY;);
DESCRIPTOR(2, uint8_t, COLL(NAMED uint64_t seq; const char *func; BUFFERS size_t count; int root; const char *datatype;
    size_t traffic; uint8_t channels, warps; const char *algo, *proto;);
  P2P(NAMED const char *func; void *buff; const char *datatype; size_t count; int peer;); PROXY;);
DESCRIPTOR(3, uint8_t, COLL(NAMED uint64_t seq; const char *func; BUFFERS size_t count; int root; const char *datatype;
    uint8_t channels, warps; const char *algo, *proto;);
  P2P(NAMED const char *func; void *buff; const char *datatype; size_t count; int peer;); PROXY;
  struct { uint8_t channel; } kernel;);
#define COLL4 uint64_t seq; const char *func; BUFFERS size_t count; int root; const char *datatype; uint8_t channels, warps; \
  const char *algo, *proto;
#define P2P4 const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t channels;
DESCRIPTOR(4, uint8_t, COLL(COLL4); P2P(P2P4); PROXY; KERNEL;);
DESCRIPTOR(5, uint64_t, COLL(COLL4 void *group;); P2P(P2P4 void *group;); PROXY; KERNEL;);
DESCRIPTOR(6, uint64_t, COLL(COLL4 void *group;); P2P(P2P4 void *group;); PROXY; KERNEL;);
DESCRIPTOR(7, uint64_t, COLL(COLL4 void *group; const char *variant; _Bool symmetric; uint64_t tag;);
  P2P(P2P4 void *group; uint64_t tag;); PROXY; KERNEL;);
_Static_assert(sizeof(D1) == 120 && sizeof(D2) == 128 && sizeof(D3) == 120 && sizeof(D4) == 104, "v1 to v4");
_Static_assert(sizeof(D5) == 112 && sizeof(D6) == 112 && sizeof(D7) == 136, "v5 to v7");

/* The tables differ only in `init`, so one struct with an untyped `init` is enough for all. */
typedef struct {
  const char *name;
  void *init;
  int (*start)(void *, void **, void *);
  int (*stop)(void *);
  int (*record)(void *, int, void *);
  int (*finalize)(void *);
} Table;
typedef void (*Logger)(int, unsigned long, const char *, int, const char *, ...);

static int ncclProfilerEventMask;
static int version_code = 0;
static Table *table;
static int abi;

int ncclGetVersion(int *version) {
  *version = version_code;
  return version_code ? 0 : 1;
}

static void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)level, (void)flags, (void)file, (void)line, (void)format;
}

void nccl_version(int code) { version_code = code; }

/* NCCL too closes the plugin at the last communicator and opens it again at the next. */
static void *library;
int nccl_load(const char *path, int newest) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 0;
  }
  for (abi = newest; abi > 0; abi--) {
    char name[32];
    snprintf(name, sizeof name, "ncclProfiler_v%d", abi);
    table = dlsym(library, name);
    if (table) return abi;
  }
  return 0;
}

int nccl_mask(void) { return __atomic_load_n(&ncclProfilerEventMask, __ATOMIC_RELAXED); }
int nccl_unload(void) { return dlclose(library); }

int nccl_init(void **context, const char *name, uint64_t hash, int nodes, int ranks, int rank) {
  int *mask = &ncclProfilerEventMask;
  if (abi <= 3) return ((int (*)(void **, int *))table->init)(context, mask);
  if (abi == 4)
    return ((int (*)(void **, int *, const char *, uint64_t, int, int, int, Logger))table->init)(
        context, mask, name, hash, nodes, ranks, rank, logger);
  return ((int (*)(void **, uint64_t, int *, const char *, int, int, int, Logger))table->init)(
      context, hash, mask, name, nodes, ranks, rank, logger);
}

static uint8_t function_number(const char *name) {
  const char *names[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"};
  for (uint8_t n = 0; n < 8; n++)
    if (!strcmp(names[n], name)) return n;
  return 255;
}

static uint8_t datatype_number(const char *name) {
  const char *names[] = {"ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64", "ncclFloat16",
                         "ncclFloat32", "ncclFloat64", "ncclBfloat16"};
  for (uint8_t n = 0; n < 10; n++)
    if (!strcmp(names[n], name)) return n;
  return 255;
}

/* Every byte that a version does not define is set, so that reading it by mistake is detected. */
#define BEGIN(VERSION, TYPE) D##VERSION d; memset(&d, 0xA5, sizeof d); d.type = TYPE; d.parent = call->parent; d.rank = call->rank
#define COLL_WITH(VERSION, FUNC, TYPE) { BEGIN(VERSION, 1 << 1); d.coll.seq = call->seq; d.coll.func = FUNC; \
  d.coll.count = call->count; d.coll.datatype = TYPE; d.coll.channels = (uint8_t)call->channels; EXTRA \
  return table->start(context, handle, &d); }
#define P2P_WITH(VERSION, FUNC, TYPE) { BEGIN(VERSION, 1 << 2); d.p2p.func = FUNC; d.p2p.count = call->count; \
  d.p2p.datatype = TYPE; d.p2p.peer = call->peer; EXTRA return table->start(context, handle, &d); }

int nccl_coll(void *context, void **handle, const Call *call) {
#define EXTRA d.coll.hash = call->hash; d.coll.name = "n";
  if (abi == 1) COLL_WITH(1, function_number(call->func), datatype_number(call->datatype))
  if (abi == 2) COLL_WITH(2, call->func, call->datatype)
  if (abi == 3) COLL_WITH(3, call->func, call->datatype)
#undef EXTRA
#define EXTRA
  if (abi == 4) COLL_WITH(4, call->func, call->datatype)
  if (abi == 5) COLL_WITH(5, call->func, call->datatype)
  if (abi == 6) COLL_WITH(6, call->func, call->datatype)
  COLL_WITH(7, call->func, call->datatype)
#undef EXTRA
}

int nccl_p2p(void *context, void **handle, const Call *call) {
#define EXTRA d.p2p.hash = call->hash; d.p2p.name = "n";
  if (abi == 1) P2P_WITH(1, function_number(call->func), datatype_number(call->datatype))
  if (abi == 2) P2P_WITH(2, call->func, call->datatype)
  if (abi == 3) P2P_WITH(3, call->func, call->datatype)
#undef EXTRA
#define EXTRA d.p2p.channels = (uint8_t)call->channels;
  if (abi == 4) P2P_WITH(4, call->func, call->datatype)
  if (abi == 5) P2P_WITH(5, call->func, call->datatype)
  if (abi == 6) P2P_WITH(6, call->func, call->datatype)
  P2P_WITH(7, call->func, call->datatype)
#undef EXTRA
}

/* Starts a channel of a kernel, records its stop time, and stops it. Version 3 has no timers. */
int nccl_kernel(void *context, const Call *call, int channel, uint64_t start, uint64_t stop) {
  void *handle = NULL;
  int failed = 0;
#define KERNEL_WITH(VERSION) { BEGIN(VERSION, 1 << 6); d.kernel.channel = (uint8_t)channel; d.kernel.timer = start; \
  failed |= table->start(context, &handle, &d); }
  if (abi < 3) return 0;
  if (abi == 3) { BEGIN(3, 1 << 6); d.kernel.channel = (uint8_t)channel; failed |= table->start(context, &handle, &d); }
  if (abi == 4) KERNEL_WITH(4)
  if (abi == 5) KERNEL_WITH(5)
  if (abi == 6) KERNEL_WITH(6)
  if (abi == 7) KERNEL_WITH(7)
  if (!handle) return failed;
  union { size_t size; uint64_t timer; } arguments = {.timer = stop};
  return failed | table->record(handle, 22, &arguments) | table->stop(handle);
}

/* Starts an event of a kind that was not requested. */
int nccl_odd(void *context, void **handle, uint64_t type) {
  Call none = {0}, *call = &none;
  if (abi < 5) { BEGIN(1, (uint8_t)type); return table->start(context, handle, &d); }
  BEGIN(7, type);
  return table->start(context, handle, &d);
}

int nccl_stop(void *handle) { return table->stop(handle); }
int nccl_record(void *handle, int state, void *arguments) { return table->record(handle, state, arguments); }
int nccl_finalize(void *context) { return table->finalize(context); }
