"""A disk over iSER, by the calls of libiscsi that wait: what is written comes back, is in the daemon's file, and is the
same in its own comparison (VERIFY). Arguments: initiator, portal, target, the file behind its unit 1.

libiscsi 1.19 takes it for granted that the memory of a connection is zero, which GLIBC_TUNABLES can make so
(glibc.malloc.tcache_count=0:glibc.malloc.perturb=255); and its disconnecting frees what its thread may still use, so
that this program only ends."""

import ctypes
import os
import random
import sys

ISER, NORMAL, CHECK_CONDITION, BLOCK = 1, 2, 2, 512

iscsi = ctypes.CDLL("libiscsi.so.7")
for name in ["create_context", "get_error", "write10_sync", "read10_iov_sync", "verify10_sync"]:
    getattr(iscsi, "iscsi_" + name).restype = ctypes.c_void_p

initiator, portal, target, path = sys.argv[1:]
here = ctypes.c_void_p(iscsi.iscsi_create_context(initiator.encode()))


def said():
    return ctypes.string_at(iscsi.iscsi_get_error(here)).decode()


def good(result):
    if result:
        sys.exit(said())


def ended(task, expected=0):
    # A task begins with its status.
    status = ctypes.c_int.from_address(task).value if task else None
    if status != expected:
        sys.exit(f"status {status}, and {expected} was expected: {said()}")


good(iscsi.iscsi_init_transport(here, ISER))
good(iscsi.iscsi_set_targetname(here, target.encode()))
good(iscsi.iscsi_set_session_type(here, NORMAL))
good(iscsi.iscsi_full_connect_sync(here, portal.encode(), 1))
file = open(path, "rb", buffering=0)
places = os.path.getsize(path) // BLOCK
for blocks in [1, 7, 8, 16, 17, 64, 255, 256]:
    size, at = BLOCK * blocks, random.randrange(places - blocks)
    data, back = random.randbytes(size), ctypes.create_string_buffer(size)
    part = (ctypes.c_size_t * 2)(ctypes.addressof(back), size)
    ended(iscsi.iscsi_write10_sync(here, 1, at, data, size, BLOCK, 0, 0, 0, 0, 0))
    ended(iscsi.iscsi_read10_iov_sync(here, 1, at, size, BLOCK, 0, 0, 0, 0, 0, part, 1))
    if back.raw != data:
        sys.exit(f"{blocks} blocks at {at} come back otherwise")
    file.seek(BLOCK * at)
    if file.read(size) != data:
        sys.exit(f"{blocks} blocks at {at} are otherwise in the file")
    ended(iscsi.iscsi_verify10_sync(here, 1, data, size, at, 0, 0, 1, BLOCK))
    other = data[:-1] + bytes([data[-1] ^ 1])
    ended(iscsi.iscsi_verify10_sync(here, 1, other, size, at, 0, 0, 1, BLOCK), CHECK_CONDITION)
print("all the same", flush=True)
os._exit(0)
