"""A link of bad quality, where the kernel has no netem: every frame of a host passes through this program.

It stands between two taps, one on the host's side and one on the side of all others, and holds frames back, throws them
away, sends them twice or lets them overtake each other. `network.NamespaceNetwork.weaken` starts it for the length of a
fault and plugs the taps in; without a fault no frame takes this way. Stands alone, so that it starts quickly:

    python switch.py INSIDE OUTSIDE SEED '{"delay_ms": 50, "jitter_ms": 10, "loss": 0.1, "twice": 0.01, "overtakes": 0.1}'
"""

import fcntl
import heapq
import json
import os
import select
import struct
import sys
import time
from dataclasses import dataclass
from random import Random
from typing import Final

DEVICE: Final = "/dev/net/tun"
READY: Final = "ready"
MAX_FRAME_BYTES: Final = 65_600
MAX_HELD_FRAMES: Final = 20_000  # as a router: what comes on top is lost
_BURST: Final = 64  # frames of one side before the other is looked at
_TUNSETIFF: Final = 0x400454CA  # linux/if_tun.h
_TAP_WITHOUT_HEADER: Final = 0x0002 | 0x1000  # IFF_TAP | IFF_NO_PI


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Of both directions. Chances are of one frame, from 0 to 1."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0  # evenly, either way; frames that draw differently overtake each other
    loss: float = 0.0
    twice: float = 0.0
    overtakes: float = 0.0  # goes at once, ahead of those that are held back


class Link:
    """Decides about frames. Pure: time and dice come in."""

    def __init__(self, quality: Quality, rng: Random) -> None:
        self._quality = quality
        self._rng = rng
        self._held: list[tuple[float, int, int, bytes]] = []  # when it is due, its number, the way out, the frame
        self._number = 0

    def arrived(self, frame: bytes, way_out: int, now_s: float) -> None:
        quality, chance = self._quality, self._rng.random
        if chance() < quality.loss or len(self._held) >= MAX_HELD_FRAMES:
            return
        for _ in range(2 if chance() < quality.twice else 1):
            held_ms = quality.delay_ms + quality.jitter_ms * self._rng.uniform(-1, 1)
            if chance() < quality.overtakes:
                held_ms = 0.0
            self._number += 1
            heapq.heappush(self._held, (now_s + max(held_ms, 0.0) / 1000, self._number, way_out, frame))

    def due(self, now_s: float) -> list[tuple[int, bytes]]:
        """(way out, frame) of those that leave now, in order."""
        leaving = []
        while self._held and self._held[0][0] <= now_s:
            _, _, way_out, frame = heapq.heappop(self._held)
            leaving.append((way_out, frame))
        return leaving

    def next_s(self) -> float | None:
        return self._held[0][0] if self._held else None


def open_tap(name: str) -> int:
    """A new device of this name in the network namespace of this process; it goes when the handle is closed."""
    handle = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22x", name.encode("ascii"), _TAP_WITHOUT_HEADER))
    return handle


def serve(link: Link, inside: int, outside: int) -> None:
    """Until the process is killed."""
    other = {inside: outside, outside: inside}
    poll = select.epoll()
    for handle in other:
        poll.register(handle, select.EPOLLIN)
    while True:
        next_s = link.next_s()
        wait_s = -1.0 if next_s is None else max(0.0, next_s - time.monotonic())
        for handle, _ in poll.poll(wait_s):
            _take(link, handle, other[handle])
        for way_out, frame in link.due(time.monotonic()):
            try:
                os.write(way_out, frame)
            except OSError:
                pass  # the device is full or down, as a wire may be


def _take(link: Link, handle: int, way_out: int) -> None:
    for _ in range(_BURST):
        try:
            frame = os.read(handle, MAX_FRAME_BYTES)
        except OSError:  # nothing is left, or the device is not up yet
            return
        link.arrived(frame, way_out, time.monotonic())


def main() -> None:
    inside, outside, seed, quality = sys.argv[1:]
    handles = open_tap(inside), open_tap(outside)
    print(READY, flush=True)
    serve(Link(Quality(**json.loads(quality)), Random(int(seed))), *handles)


if __name__ == "__main__":
    main()
