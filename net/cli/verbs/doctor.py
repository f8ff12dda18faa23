"""`barnabas doctor`: what is wrong with the cluster, what it costs whom, and the cure; the gravest first."""

import asyncio
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import BarnabasError

from ...client.admin.finding import Finding, Weight, utc_time
from ..frame.command import Context, Verb
from ..frame.exit_codes import ExitCode
from ..frame.reachability import address_causes

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin

WATCH_INTERVAL_S: Final = 2.0
LOOK_SHARE: Final = 0.6  # of --timeout; connections to the advertised addresses take the rest
# If a broker cannot be reached: a question that needs it would wait for all of the time, and the cause is known already.
HURRIED_SHARE: Final = 0.15
BUNDLE_SHARE: Final = 0.9  # of --timeout, until no further question is asked: answers must reach the file
_NOTHING: Final = "nothing is wrong that the cluster can tell"


def _arguments(parser: ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--watch", action="store_true", help="look again and again, and print what comes and goes")
    group.add_argument(
        "--bundle",
        metavar="FILE",
        help="write FILE (.tar.gz) for a maintainer: findings, cluster, events, metrics, configurations; no records, no secrets",
    )


async def _doctor(context: Context) -> int:
    """Exit code 3 if something is wrong now; risks alone leave it 0."""
    if context.arguments.bundle is not None:
        return await _bundle(context, Path(context.arguments.bundle))
    async with context.connector.admin(context.bootstrap) as admin:
        if context.arguments.watch:
            await _watch(context, admin)
        async with asyncio.timeout(context.arguments.timeout):
            found = await _examined(context, admin)
    if context.out.is_json:
        context.out.record({"healthy": not _is_ill(found), "findings": [item.row for item in found]})
    else:
        for item in found:
            _print(context, item)
        if not found:
            context.out.text(_NOTHING)
    return ExitCode.UNHEALTHY if _is_ill(found) else ExitCode.OK


async def _bundle(context: Context, path: Path) -> int:
    """Write it whatever the cluster answers. Exit code 4: nothing of the cluster could be asked."""
    from importlib.metadata import version

    from ..bundle.archive import Archive  # imports the client
    from ..bundle.gathering import Gathering, add_frame

    archive, code = Archive(), ExitCode.OK
    found: list[Finding] = []
    try:
        async with asyncio.timeout(context.arguments.timeout), context.connector.admin(context.bootstrap) as admin:
            ends_s = asyncio.get_running_loop().time() + BUNDLE_SHARE * context.arguments.timeout
            found = await _examined(context, admin)
            await Gathering(admin, archive, ends_s=ends_s, security=context.connector.security).all()
    except (BarnabasError, OSError) as error:  # a TimeoutError is an OSError
        archive.omitted["cluster"] = str(error) or f"no answer within {context.arguments.timeout:g} s; raise --timeout"
        code = ExitCode.UNREACHABLE
    add_frame(archive, found, version("barnabas"))
    size_bytes = await asyncio.to_thread(archive.write, path)
    told = {"bundle": str(path), "size_bytes": size_bytes, "findings": len(found), "unanswered": len(archive.omitted)}
    context.out.line(
        f"wrote {path}: {size_bytes / 1024:.0f} KiB, {len(found)} findings, {len(archive.omitted)} questions without an answer;"
        " it has no records and no secrets, but names: look through it before you pass it on",
        told,
    )
    return code


async def _watch(context: Context, admin: "Admin") -> None:
    """Until Ctrl-C."""
    known: dict[str, Finding] | None = None
    while True:
        found = await _seen(context, admin, known)
        for identity, item in found.items():
            if known is None or identity not in known:
                _tell(context, "found", item)
        for identity, item in (known or {}).items():
            if identity not in found:
                _tell(context, "gone", item)
        if not found and known != found:
            context.out.line(_NOTHING, {"event": "healthy"})
        known = found
        context.out.stdout.flush()
        await asyncio.sleep(WATCH_INTERVAL_S)


async def _seen(context: Context, admin: "Admin", known: dict[str, Finding] | None) -> dict[str, Finding]:
    """By identity. A cluster that has answered once, and does not any more, keeps its findings and has one more."""
    try:
        async with asyncio.timeout(context.arguments.timeout):
            return {item.identity: item for item in await _examined(context, admin)}
    except (BarnabasError, OSError) as error:  # a TimeoutError is an OSError
        if known is None or (isinstance(error, BarnabasError) and not error.retriable):
            raise
        why = str(error) or "no answer in time"
        silent = Finding(weight=Weight.CRITICAL, key="silent", what=f"the cluster does not answer: {why}")
        return {**known, silent.identity: silent}


def _tell(context: Context, event: str, item: Finding) -> None:
    if context.out.is_json:
        context.out.record({"event": event, **item.row})
    elif event == "gone":
        context.out.text(f"{'GONE':<10}{item.what}")
    else:
        _print(context, item)


async def _examined(context: Context, admin: "Admin") -> list[Finding]:
    from ...client.admin.doctor import diagnose, look  # imports the client

    unreachable = await address_causes(context.connector, await admin.describe_cluster())
    picture = await look(admin, limit_s=(HURRIED_SHARE if unreachable else LOOK_SHARE) * context.arguments.timeout)
    return diagnose(replace(picture, unreachable=unreachable))


def _is_ill(found: list[Finding]) -> bool:
    return any(item.weight >= Weight.PROBLEM for item in found)


def _print(context: Context, item: Finding) -> None:
    context.out.text(f"{item.weight.name:<10}{item.what}")
    since = utc_time(item.since_ms) if item.since_ms >= 0 else ""
    for label, text in (("since", since), ("costs", item.costs), ("cure", item.cure)):
        if text:
            context.out.text(f"{'':10}{label + ':':<7}{text}")


VERBS = {
    "doctor": Verb(
        name="doctor",
        summary="say what is wrong with the cluster, and what to do",
        arguments=_arguments,
        run=_doctor,
        timed=False,  # --watch has no end; each look has --timeout
    ),
}
