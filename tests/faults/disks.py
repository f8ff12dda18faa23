"""A small ext4 for each broker, in a file: it can fill up, and its power can be cut.

Lost power is the shutdown of the file system without a flush (EXT4_IOC_SHUTDOWN), then kill -9, then another mount: what
was not synced is gone. A machine that lost power has another boot id, which the broker's process is given by a mount of
its own over the kernel's file.
"""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
import uuid
from pathlib import Path
from typing import Final

from .mounts import run, use_own_table

SIZE_MIB: Final = 1024  # sparse; half an hour of records, and the segments that are still to be deleted
_SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN, linux/fs/ext4/ext4.h
_NO_FLUSH: Final = struct.pack("I", 2)  # EXT4_GOING_FLAGS_NOLOGFLUSH
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_SPARE_BYTES: Final = 4096
RELEASE_S: Final = 10.0  # until a process of another campaign, which is about to start, has let go of a mount
POLL_S: Final = 0.02


def why_not() -> str:
    """Why disks cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "disks of their own need root"
    missing = [name for name in ("mkfs.ext4", "mount", "umount", "unshare") if shutil.which(name) is None]
    return f"disks of their own need {' and '.join(missing)}" if missing else ""


class LoopDisk:
    """One mounted file system."""

    def __init__(self, image: Path, mount_point: Path) -> None:
        self._image = image
        self._boot_id = image.with_suffix(".boot")
        self._mount_point = mount_point
        use_own_table()
        mount_point.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(SIZE_MIB << 20)
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", str(image))
        self._boot()
        self.mount()

    def launcher(self) -> tuple[str, ...]:
        """What runs a command on the machine of this disk, with no process in between.

        Its copy of the mount table keeps no other loop disk, of this cluster or of another campaign: a file system that is
        mounted anywhere outlives its `umount`, and a later mount gives the one without power back.
        """
        others = (
            f"""awk -v own='{self._mount_point}' '$1 ~ "^/dev/loop" && $2 != own {{ print $2 }}' /proc/self/mounts"""
        )
        script = f'{others} | xargs --no-run-if-empty umount; mount --bind "$0" {_BOOT_ID} && exec "$@"'
        return ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(self._boot_id))

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self._mount_point))

    def cut_power(self) -> None:
        """Nothing reaches the disk any more, and what was not synced never will. Kill the broker, then `restore`."""
        handle = os.open(self._mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, _NO_FLUSH)
        finally:
            os.close(handle)

    def restore_power(self) -> None:
        """Raises OSError if another mount table keeps the file system without power for RELEASE_S."""
        deadline_s = time.monotonic() + RELEASE_S
        run("umount", str(self._mount_point))
        self._boot()
        self.mount()
        while not self._has_power():
            if time.monotonic() > deadline_s:
                raise OSError(
                    f"{self._mount_point} is mounted elsewhere and cannot get its power back; see /proc/*/mounts"
                )
            run("umount", str(self._mount_point))
            time.sleep(POLL_S)
            self.mount()

    def _has_power(self) -> bool:
        probe = self._mount_point / "probe"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            if error.errno == errno.EIO:
                return False
            raise
        return True

    def fill(self) -> None:
        """Leave no room. What the broker has already reserved it may still write."""
        free_bytes = os.statvfs(self._mount_point).f_bavail * os.statvfs(self._mount_point).f_frsize
        if free_bytes < 16 * _SPARE_BYTES:
            sizes = sorted((path.stat().st_blocks * 512, str(path)) for path in self._mount_point.rglob("*"))
            raise OSError(f"{self._mount_point} has only {free_bytes} bytes free before it is filled: {sizes[-5:]}")
        with (self._mount_point / "ballast").open("wb", buffering=0) as file:
            chunk = bytes(_SPARE_BYTES)
            try:
                os.posix_fallocate(file.fileno(), 0, max(free_bytes - 16 * _SPARE_BYTES, 1))
                file.seek(0, os.SEEK_END)
                while True:
                    file.write(chunk)
            except OSError:
                return

    def free(self) -> None:
        (self._mount_point / "ballast").unlink(missing_ok=True)

    def destroy(self) -> None:
        subprocess.run(["umount", "-l", str(self._mount_point)], capture_output=True, check=False)
        self._image.unlink(missing_ok=True)

    def _boot(self) -> None:
        self._boot_id.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
