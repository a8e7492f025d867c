"""Trains a linear layer on a GPU, then starts a kernel that writes to an address where nothing is.

The kernel comes as PTX, which the driver compiles; where it cannot, PyTorch's own kernel writes through a tensor made of that address. The next call that
waits for the GPU raises, and ends the script.
"""

import ctypes
import json
import os
import time

import torch
from exhaust import Training

STEPS = 20
STEP_S = 0.1
# Within the first page, which no process and no driver maps.
NOWHERE = 256
PTX = b"""\
.version 7.0
.target sm_50
.address_size 64
.visible .entry write_nowhere(.param .u64 address)
{
    .reg .u64 %to;
    .reg .u32 %value;
    ld.param.u64 %to, [address];
    mov.u32 %value, 1;
    st.global.u32 [%to], %value;
    ret;
}
"""


def main():
    training = Training(torch.device("cuda"))
    for _ in range(STEPS):
        training.step()
        torch.cuda.synchronize()
        time.sleep(STEP_S)
    compiled = write_by_ptx()
    if compiled != 0:
        write_by_pytorch()
    print(json.dumps({"pid": os.getpid(), "at": time.time(), "ptx": compiled == 0, "cuModuleLoadData": compiled}), flush=True)
    torch.cuda.synchronize()


def write_by_ptx():
    """Puts the kernel into the stream. Returns what the driver answers to the PTX: 0 where it compiled it."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    loaded = driver.cuModuleLoadData(ctypes.byref(module), PTX)
    if loaded != 0:
        return loaded
    must(driver.cuModuleGetFunction(ctypes.byref(function), module, b"write_nowhere"))
    address = ctypes.c_uint64(NOWHERE)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    one, none = ctypes.c_uint(1), ctypes.c_void_p()
    must(driver.cuLaunchKernel(function, one, one, one, one, one, one, ctypes.c_uint(0), none, arguments, none))
    return 0


def must(result):
    if result != 0:
        raise RuntimeError(f"the CUDA driver answers {result}")


def write_by_pytorch():
    storage = torch._C._construct_storage_from_data_pointer(NOWHERE, torch.device("cuda", torch.cuda.current_device()), 4)
    torch.empty(0, device="cuda").set_(storage, 0, (1,), (1,)).fill_(1.0)


if __name__ == "__main__":
    main()
