"""RDMA without hardware, for the programs that a test or a script starts.

`environment` is for programs that share one address of this host; a `Network` has devices of its own, on addresses that nobody
else has, and can lose packets. Both start nothing as root.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sysconfig
import time
from pathlib import Path
from typing import Any, Optional

__all__ = ["Device", "Network", "VerbsError", "command", "environment"]

#: RoCE v2's UDP port, which one device has on each address.
_ROCE_PORT = 4791


class VerbsError(RuntimeError):
    """The command `verbs` has refused something, or is not there. The text is its own."""


def command() -> str:
    """The command `verbs`: the one that the variable VERBS names, or that came with this module, or that is in PATH."""
    named = os.environ.get("VERBS")
    if named:
        return named
    beside = Path(sysconfig.get_path("scripts")) / "verbs"
    found = str(beside) if beside.exists() else shutil.which("verbs")
    if found is None:
        raise VerbsError("there is no command verbs in PATH: install verbs-rdma, or name it with the variable VERBS")
    return found


def _options(device: Optional[str], loss: Optional[int], seed: Optional[int], rsocket: bool) -> list[str]:
    words = [] if device is None else ["--device", device]
    words += [] if loss is None else ["--loss", str(loss)]
    words += [] if seed is None else ["--seed", str(seed)]
    return words + (["--rsocket"] if rsocket else [])


def environment(
    device: Optional[str] = None,
    *,
    loss: Optional[int] = None,
    seed: Optional[int] = None,
    rsocket: bool = False,
) -> dict[str, str]:
    """This process's environment, with what programs need to run on a software HCA.

    The arguments are those of `verbs run`: `device` is an address of this host, `iwarp` or a node of a subnet; `loss` is how many
    of a thousand packets are lost, and `seed` says which; `rsocket` makes streams over RDMA of the programs' TCP sockets.
    Raises VerbsError.
    """
    words = [command(), "run", "--environment", *_options(device, loss, seed, rsocket)]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise VerbsError(said.stderr.strip())
    return {**os.environ, **dict(line.split("=", 1) for line in said.stdout.splitlines())}


class Device:
    """A device of a `Network`, at an address of its own."""

    def __init__(self, address: str, loss: Optional[int], seed: Optional[int]) -> None:
        #: Its address, to which other devices of the network connect.
        self.address = address
        self._loss, self._seed = loss, seed
        self._started: list[subprocess.Popen[Any]] = []

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program on this device, for those who start it themselves. Raises VerbsError."""
        return environment(self.address, loss=self._loss, seed=self._seed)

    def _words(self, program: tuple[str, ...]) -> list[str]:
        return [command(), "run", *_options(self.address, self._loss, self._seed, False), "--", *program]

    def start(self, *program: str, **options: Any) -> subprocess.Popen[Any]:
        """Starts a program on this device; `options` are those of subprocess.Popen. It ends with the network."""
        process = subprocess.Popen(self._words(program), **options)
        self._started.append(process)
        return process

    def run(
        self,
        *program: str,
        wait_for: Optional[subprocess.Popen[Any]] = None,
        timeout: float = 60,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Runs a program on this device to its end, which has to be a good one (subprocess.CalledProcessError).

        With `wait_for`, the program is a client of that server: it is run again as long as the server lives and it fails, for
        a part of `timeout` (in seconds), because the server may not listen yet; and the server has to end well too.
        """
        end = time.monotonic() + timeout
        while True:
            done = subprocess.run(self._words(program), check=False, timeout=max(1, end - time.monotonic()), **options)
            again = wait_for is not None and wait_for.poll() is None and time.monotonic() < end - timeout / 2
            if done.returncode == 0 or not again:
                break
            time.sleep(0.1)
        done.check_returncode()
        if wait_for is not None:
            code = wait_for.wait(max(1, end - time.monotonic()))
            if code != 0:
                raise subprocess.CalledProcessError(code, wait_for.args)
        return done

    def _close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        for process in self._started:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Network:
    """Devices on addresses of this host that nobody else has, and what is lost between them.

    `loss` is how many of a thousand packets are lost on the way to each device, 0 to 1000; `seed` says which: the same number,
    the same places. Programs that are still there at its end are ended.
    """

    def __init__(self, count: int = 2, *, loss: Optional[int] = None, seed: Optional[int] = None) -> None:
        if seed is not None and loss is None:
            raise ValueError("a seed draws what is lost: give loss as well")
        addresses = _free_addresses(count)
        #: The devices.
        self.devices = [
            Device(address, loss, None if seed is None else seed + place) for place, address in enumerate(addresses)
        ]

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the programs that are still there."""
        for device in self.devices:
            device._close()


def _free_addresses(count: int) -> list[str]:
    """Addresses of 127.0.0.0/8 at which no device is. They are drawn, so that two networks made at once have others."""
    draw = random.SystemRandom()
    found: list[str] = []
    while len(found) < count:
        address = f"127.{draw.randint(1, 250)}.{draw.randint(1, 250)}.{draw.randint(1, 250)}"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            try:
                free.bind((address, _ROCE_PORT))
            except OSError:
                continue
        if address not in found:
            found.append(address)
    return found
