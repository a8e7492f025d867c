"""How the ranks connect for RPC, and how they disconnect.

torchrun gives every rank MASTER_ADDR and MASTER_PORT: its own key-value store. RPC needs one too, with keys that must not be visible to the
next attempt. So rank 0 opens a separate store on a free port, and publishes that port in torchrun's store:

    rank 0    TCPStore(MASTER_ADDR, port 0) ──▶ torchrun's store: rpc/ATTEMPT = port
    others    torchrun's store: wait for rpc/ATTEMPT ──▶ tcp://MASTER_ADDR:port

TensorPipe listens on the address of the host's name, which on many machines is a loopback address that no other node can reach.
Unless the user has chosen an interface, the one with the route to MASTER_ADDR is set.
"""

import fcntl
import os
import socket
import struct
import sys
import warnings
from datetime import timedelta

import torch.distributed as dist
import torch.distributed.rpc as rpc

CONNECT_S = 120.0  # torchrun starts its nodes within about one minute of each other
PART_S = 60
SIOCGIFADDR = 0x8915  # linux/sockios.h

_own_store = None  # kept alive, because RPC's connections to it end with it


def name_of(rank):
    return "server" if rank == 0 else f"worker{rank}"


def join(rank, ranks, rpc_timeout_s):
    """Returns once every rank can call every other."""
    address = os.environ["MASTER_ADDR"]
    choose_interface(address)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{address}:{agree_on_port(rank, ranks, address)}", rpc_timeout=rpc_timeout_s)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using a Backend")  # caused by torch's own code
        rpc.init_rpc(name_of(rank), rank=rank, world_size=ranks, rpc_backend_options=options)


def agree_on_port(rank, ranks, address):
    global _own_store
    meeting_place = dist.TCPStore(address, int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=CONNECT_S))
    key = f"rpc/{os.environ.get('LOCKSTEP_ATTEMPT', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    if rank == 0:
        # Multi-tenant: init_rpc opens the same port again in this process, and gets this server.
        _own_store = dist.TCPStore(address, 0, ranks, is_master=True, wait_for_workers=False, multi_tenant=True)
        meeting_place.set(key, str(_own_store.port))
    return int(meeting_place.get(key))


def choose_interface(address):
    """Sets the interface for TensorPipe, and for the Gloo group that init_rpc uses."""
    interface = os.environ.get("TP_SOCKET_IFNAME") or os.environ.get("GLOO_SOCKET_IFNAME") or interface_towards(address)
    if interface:
        os.environ.setdefault("TP_SOCKET_IFNAME", interface)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def interface_towards(address):
    """Returns the network interface on the route to an address, or None. Nothing is sent: a UDP connect only chooses a route."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as route:
            route.connect(target)
            own = route.getsockname()[0]
        return next((name for _, name in socket.if_nameindex() if ipv4_of(name) == own), None)
    except OSError:
        return None


def ipv4_of(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:  # it has no IPv4 address
            return None
    return socket.inet_ntoa(answer[20:24])


def has_begun():
    return rpc.api._is_current_rpc_agent_set()


def part():
    """At the end: waits until every rank has arrived, with a time limit."""
    rpc.shutdown(timeout=PART_S)


def leave_at_once(status):
    """Leaves without a message to the others: they detect that the connection is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
