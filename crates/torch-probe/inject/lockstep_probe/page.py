"""The page: the current phase of this rank, which a reader can read without an answer from the rank.

A rank that is stopped, or that holds Python's lock in native code, does not answer. Its page can still be read. The shim creates
the file `page-RANK` in the attempt's folder and allocates all of it, so that no write here meets a full disk. Its other side, which
creates and reads it, is crates/shim/src/page.rs; a change of the format needs a new version and a change on both sides.

    0     slot 0, 64 bytes
    64    slot 1, 64 bytes
    128   not used, up to 4096

    slot (little endian)
    0     u64  number       of this record, from 1
    8     u64  since_ns     CLOCK_MONOTONIC at which the phase began
    16    u64  step         the last step that ended
    24    u64  batches      fetched by this process
    32    u64  backwards    backward passes that this process began
    40    u8   version      1
    41    u8   phase        the constants below
    42    u8   stage        how far the rank has come: the highest of the first phases, 5 from the first batch on
    43         zeros
    52    u32  crc          CRC-32 of the 52 bytes before
    56    u64  number       again

Record N goes into slot N % 2. A write that is interrupted, even by SIGSTOP or SIGKILL, spoils the slot it goes into and not the other
one: the reader takes the whole slot with the higher number. A forked child inherits the mapping and writes nothing.
"""

import contextlib
import mmap
import os
import stat
import time
from binascii import crc32
from struct import Struct

PAGE_BYTES = 4096
SLOT_BYTES = 64
VERSION = 1

# The numbers of `Phase` in crates/domain/src/diagnosis/input.rs.
STARTING, TORCH_IMPORTED, RENDEZVOUS, GROUP_MADE, MODEL_WRAPPED = range(5)
DATA, FORWARD, BACKWARD, OPTIMIZER, HOST, COLLECTIVE, SAVE, ENDING = range(5, 13)
FIRST_BATCH = 5  # a stage

_body = Struct("<QQQQQBBB9x").pack
_write_slot = Struct("<52sIQ").pack_into


class Page:
    """The training thread must call all methods except the first two."""

    def __init__(self, environ):
        self._path = os.path.join(os.path.dirname(os.path.abspath(environ["LOCKSTEP_PROBE_SOCKET"])), f"page-{environ['RANK']}")
        self._pid = os.getpid()
        self._map = None
        self._closed = False
        self._number = 0
        self._outer = []  # phases that a wait or a save interrupts
        self.phase = self.stage = STARTING
        self.step = self.batches = self.backwards = 0

    def close(self):
        """Closes the page permanently. The page is then empty, so that it does not show a rank that stands still. A forked child does not
        change it."""
        page, self._map, self._closed = self._map, None, True
        if page is not None and os.getpid() == self._pid:
            page[: 2 * SLOT_BYTES] = bytes(2 * SLOT_BYTES)

    def enter(self, phase):
        self.phase = phase
        if self._outer:
            self._outer.clear()
        self._write()

    def reach(self, stage):
        """Enters one of the first phases, which are also stages."""
        if self._map is None and not self._closed:
            self._open()  # `lockstep exec` creates it after it has found the rank
        self.stage = max(self.stage, stage)
        self.enter(stage)

    def imported(self):
        """A watched module was imported before the process group was made: the rank moves within its phase."""
        if self.phase <= TORCH_IMPORTED:
            self._write()

    def wrapped(self):
        """The model is wrapped. During training this is not a phase."""
        if not self.batches and not self.backwards:
            self.reach(MODEL_WRAPPED)

    def fetched(self, is_batch):
        if is_batch:
            self.batches += 1
            self.stage = FIRST_BATCH
        self.enter(FORWARD)

    def begin_backward(self):
        self.backwards += 1
        self.enter(BACKWARD)

    def rest(self):
        """A part of a step has ended, and no other has started: code of the script, or the forward pass if no loader marks its start."""
        self.enter(HOST if self.batches else FORWARD)

    def stepped(self, step):
        self.step = step
        self.rest()

    def begin(self, phase):
        """Starts a wait or a save inside another phase, which continues after `end`."""
        self._outer.append(self.phase)
        self.phase = phase
        self._write()

    def end(self):
        if self._outer:
            self.phase = self._outer.pop()
            self._write()

    def _write(self):
        page = self._map
        if page is None:
            return
        self._number = number = self._number + 1
        body = _body(number, time.monotonic_ns(), self.step, self.batches, self.backwards, VERSION, self.phase, self.stage)
        _write_slot(page, (number & 1) * SLOT_BYTES, body, crc32(body), number)

    def _open(self):
        """Opens the page. If there is none, or one of another version, the rank continues without it."""
        with contextlib.suppress(OSError, ValueError):
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                about = os.fstat(file)
                if stat.S_ISREG(about.st_mode) and about.st_size == PAGE_BYTES:
                    page = mmap.mmap(file, PAGE_BYTES)
                    page[: 2 * SLOT_BYTES] = bytes(2 * SLOT_BYTES)  # of an earlier process of this rank
                    self._map = page
            finally:
                os.close(file)
