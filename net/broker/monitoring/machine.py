"""Looks at the process and its disks now and then, in a thread, so that a scrape does not wait for them."""

import asyncio
import logging
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Final

from barnabas.log.disk.files import DiskUsage
from barnabas.net.base.figures.process_figures import ProcessFigures, read_process
from barnabas.net.wire.protocol.broker_figures import CertificateEnd

from ...admin.frame.backend import Sample

logger = logging.getLogger("barnabas.broker")

LOOK_INTERVAL_S: Final = 5.0


class MachineWatch:
    """`usage_of` tells the usage of a folder's disk, or raises OSError or a BarnabasError. Each folder has a thread of its own,
    which a hanging disk may hold for ever; the thread ends with the process."""

    def __init__(
        self,
        folders: Sequence[str],
        usage_of: Callable[[str], DiskUsage],
        certificates: Sequence[str] = (),
        configured: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`certificates`: PEM files. `configured`: PEM texts of the configuration itself, by key."""
        self.certificates: list[CertificateEnd] = []
        self._configured = [end for key, text in configured.items() for end in ends_of(text.encode(), key)]
        self._certificate_files = certificates
        self.process: ProcessFigures | None = None  # None: not looked at yet
        self.disks: dict[str, DiskUsage] = {}  # by folder; without those that cannot be asked
        self._folders = folders
        self._usage_of = usage_of
        self._is_ended = threading.Event()

    async def run(self) -> None:
        """Until cancelled."""
        for look in (self._look_at_process, *(lambda path=path: self._look_at_disk(path) for path in self._folders)):
            threading.Thread(target=self._repeat, args=(look,), name="machine", daemon=True).start()
        try:
            await asyncio.Event().wait()
        finally:
            self._is_ended.set()

    def _repeat(self, look: Callable[[], None]) -> None:
        while True:
            look()
            if self._is_ended.wait(LOOK_INTERVAL_S):
                return

    def _look_at_process(self) -> None:
        self.process = read_process()
        in_files = (end for path in self._certificate_files for end in certificate_ends(path))
        self.certificates = [*in_files, *self._configured]

    def _look_at_disk(self, path: str) -> None:
        try:
            self.disks[path] = self._usage_of(path)
        except Exception as error:  # noqa: BLE001 - the thread must go on whatever a disk answers
            self.disks.pop(path, None)
            logger.debug("disk not seen folder=%s error=%s", path, error)


def certificate_ends(path: str) -> list[CertificateEnd]:
    """Of the certificates in a PEM file; none without the library cryptography, or if the file cannot be read now."""
    try:
        return ends_of(Path(path).read_bytes(), path)
    except OSError:
        return []


def ends_of(pem: bytes, path: str) -> list[CertificateEnd]:
    """`path`: where they are, for people."""
    try:
        from cryptography import x509

        found = x509.load_pem_x509_certificates(pem)
    except (ImportError, ValueError):
        return []
    return [
        CertificateEnd(
            path=path,
            subject=item.subject.rfc4514_string(),
            ends_ms=int(item.not_valid_after_utc.timestamp() * 1000),
        )
        for item in found
    ]


def own_version() -> str:
    try:
        return version("barnabas")
    except PackageNotFoundError:  # it runs from its sources
        return "unknown"


def machine_samples(watch: MachineWatch, clock_offset_ms: int) -> Iterator[Sample]:
    """Names of the process as Prometheus' client libraries have them."""
    labels = {"version": own_version(), "python": platform.python_version()}
    yield Sample(name="barnabas_build_info", type="gauge", help="1; the version as labels.", value=1, labels=labels)
    yield Sample(
        name="barnabas_clock_offset_seconds",
        type="gauge",
        help="How far the controller's clock is ahead of this machine's, at least.",
        value=clock_offset_ms / 1000,
    )
    for path, usage in sorted(watch.disks.items()):
        for name, text, value in (
            ("free", "Free bytes on the disk of a data folder.", usage.free_bytes),
            ("total", "Size of the disk of a data folder.", usage.total_bytes),
        ):
            yield Sample(
                name=f"barnabas_disk_{name}_bytes", type="gauge", help=text, value=value, labels={"folder": path}
            )
    yield from _certificate_samples(watch.certificates)
    if watch.process is not None:
        yield from _process_samples(watch.process)


def _certificate_samples(found: Sequence[CertificateEnd]) -> Iterator[Sample]:
    """Two authorities of one file may have one name, while one replaces the other: the first end counts."""
    ends: dict[tuple[str, str], int] = {}
    for item in found:
        key = (item.path, item.subject)
        ends[key] = min(item.ends_ms, ends.get(key, item.ends_ms))
    for (path, subject), ends_ms in sorted(ends.items()):
        yield Sample(
            name="barnabas_certificate_end_timestamp_seconds",
            type="gauge",
            help="When a certificate of this broker, or one that it trusts, ends, in seconds since unix epoch.",
            value=ends_ms / 1000,
            labels={"path": path, "subject": subject},
        )


def _process_samples(found: ProcessFigures) -> Iterator[Sample]:
    text = "Total user and system CPU time spent in seconds."
    yield Sample(name="process_cpu_seconds_total", type="counter", help=text, value=found.cpu_s)
    for name, text, value in (
        ("process_resident_memory_bytes", "Resident memory size in bytes.", found.memory_bytes),
        (
            "barnabas_memory_limit_bytes",
            "Memory of the machine, or less if a container or a control group has less.",
            found.memory_limit_bytes,
        ),
        ("process_open_fds", "Number of open file descriptors.", found.descriptors),
        ("process_max_fds", "Maximum number of open file descriptors.", found.descriptor_limit),
        ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", found.started_s),
    ):
        if value >= 0:
            yield Sample(name=name, type="gauge", help=text, value=value)
