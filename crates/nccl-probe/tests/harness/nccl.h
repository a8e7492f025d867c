/* The parts of NCCL that the driver uses; see nccl.c. */
#include <stddef.h>
#include <stdint.h>

typedef struct {
  void *parent;
  int rank, peer, channels;
  uint64_t hash, seq;
  size_t count;
  const char *func, *datatype;
} Call;

int nccl_mask(void);
void nccl_version(int code);
int nccl_load(const char *path, int newest);
int nccl_unload(void);
int nccl_init(void **context, const char *name, uint64_t hash, int nodes, int ranks, int rank);
int nccl_coll(void *context, void **handle, const Call *call);
int nccl_p2p(void *context, void **handle, const Call *call);
int nccl_kernel(void *context, const Call *call, int channel, uint64_t start, uint64_t stop);
int nccl_odd(void *context, void **handle, uint64_t type);
int nccl_stop(void *handle);
int nccl_record(void *handle, int state, void *arguments);
int nccl_finalize(void *context);
