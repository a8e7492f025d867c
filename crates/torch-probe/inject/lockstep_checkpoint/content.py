"""The content of a tensor as a digest, and the comparison with a stored tensor."""

import ctypes
import hashlib
import io

import torch

DIGEST_BYTES = 16


def digest(tensor):
    """Returns BLAKE2b of dtype, shape and bytes, in hex; None for a tensor without plain bytes (sparse, quantized)."""
    raw = plain_bytes(tensor)
    if raw is None:
        return None
    state = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=DIGEST_BYTES)
    if raw.numel():
        state.update((ctypes.c_char * raw.numel()).from_address(raw.data_ptr()))
    return state.hexdigest()


def same_as_stored(tensor, path, offset, length):
    """Returns True if the tensor saved at `offset` in a file equals this one, bit for bit. NaN values are compared by their bits."""
    with open(path, "rb") as file:
        file.seek(offset)
        stored = torch.load(io.BytesIO(file.read(length)), map_location="cpu", weights_only=True)
    if (stored.dtype, stored.shape) != (tensor.dtype, tensor.shape):
        return False
    ours, theirs = plain_bytes(tensor), plain_bytes(stored)
    return ours is not None and theirs is not None and torch.equal(ours, theirs)


def plain_bytes(tensor):
    """Returns the tensor's values as one row of bytes in host memory."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
