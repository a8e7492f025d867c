"""NCCL, out of memory, Xid."""
