"""`barnabas security ...`: an authority, and certificates of brokers and clients. They are files; no cluster is asked."""

import datetime
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.net.client.admin.finding import utc_time

from ..frame.command import Context, Verb, number_from
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row

if TYPE_CHECKING:  # cryptography is an extra
    from cryptography import x509

_COLUMNS: Final = ("file", "subject", "names", "issuer", "valid_until", "state")
SOON: Final = datetime.timedelta(days=30)
MAX_DAYS: Final = 36_500


def _days(text: str) -> int:
    days = number_from(1)(text)
    if days > MAX_DAYS:
        raise ValueError(text)
    return days


_days.__name__ = f"number of days (1 to {MAX_DAYS})"  # argparse shows it


def _authority_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where ca.pem and ca.key are, or will be")
    parser.add_argument("--name", default="barnabas", help="the name in the certificate; default: barnabas")
    parser.add_argument("--days", type=_days, metavar="N", help="how long it is valid; default: ten years")
    change = parser.add_mutually_exclusive_group()
    change.add_argument(
        "--rotate", action="store_true", help="make another one that signs from now on; ca.pem then has both"
    )
    change.add_argument("--retire", action="store_true", help="leave only the one that signs in ca.pem")


def _certificate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where ca.pem and ca.key are")
    parser.add_argument("--days", type=_days, metavar="N", help="how long it is valid; default: one year")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file for key and certificate")


def _broker_arguments(parser: ArgumentParser) -> None:
    _certificate_arguments(parser)
    parser.add_argument("node_id", type=number_from(0), metavar="NODE", help="the broker's node.id")
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="names and addresses that others dial")


def _client_arguments(parser: ArgumentParser) -> None:
    _certificate_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the client is User:CN=NAME")


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="PEM files with certificates")


def _require_cryptography() -> None:
    """Raises MissingExtraError."""
    from barnabas.net.client.arrow.extra import require

    require("cryptography", extra="security", feature="barnabas security")


async def _authority(context: Context) -> int:
    _require_cryptography()

    from barnabas.net.base.local.certificates import (
        AUTHORITY,
        AUTHORITY_DAYS,
        make_authority,
        retire_authorities,
        rotate_authority,
    )

    wanted = context.arguments
    days = wanted.days or AUTHORITY_DAYS
    path = wanted.folder / AUTHORITY
    if wanted.retire:
        removed = retire_authorities(wanted.folder)
        context.out.line(f"{path} has one authority; removed: {removed}", {"file": str(path), "removed": removed})
        return ExitCode.OK
    make = rotate_authority if wanted.rotate else make_authority
    made = make(wanted.folder, wanted.name, now=_now(), days=days)
    told = f"{path} is the certificate of the authority"
    if wanted.rotate:
        told = (
            f"{path} has the new authority and the former ones: copy it to all brokers and clients first, then make new "
            f"certificates for them, and when all have these, `barnabas security ca {wanted.folder} --retire`"
        )
    context.out.line(told, {"file": str(path), "valid_until": _until(made.certificate)})
    return ExitCode.OK


async def _broker(context: Context) -> int:
    _require_cryptography()

    from barnabas.net.base.local.certificates import CERTIFICATE_DAYS, broker_certificate, read_authority

    wanted = context.arguments
    data = broker_certificate(
        read_authority(wanted.folder),
        wanted.node_id,
        wanted.hosts,
        now=_now(),
        days=wanted.days or CERTIFICATE_DAYS,
    )
    _write(context, wanted.out or wanted.folder / f"broker-{wanted.node_id}.pem", data)
    return ExitCode.OK


async def _client(context: Context) -> int:
    _require_cryptography()

    from barnabas.net.base.local.certificates import CERTIFICATE_DAYS, client_certificate, read_authority

    wanted = context.arguments
    if "/" in wanted.name and wanted.out is None:
        raise CommandError(f"{wanted.name!r} is no name of a file; add --out FILE", ExitCode.USAGE)
    authority = read_authority(wanted.folder)
    data = client_certificate(authority, wanted.name, now=_now(), days=wanted.days or CERTIFICATE_DAYS)
    _write(context, wanted.out or wanted.folder / f"{wanted.name}.pem", data)
    return ExitCode.OK


def _write(context: Context, path: Path, data: bytes) -> None:
    from barnabas.net.base.local.certificates import write_certificate

    write_certificate(path, data)
    context.out.line(f"{path} has the private key and the certificate", {"file": str(path)})


async def _show(context: Context) -> int:
    _require_cryptography()
    rows = [row for path in context.arguments.files for row in _rows(path)]
    context.out.rows(rows, _COLUMNS)
    return ExitCode.OK if all(row["state"] != "expired" for row in rows) else ExitCode.FAILED


def _rows(path: Path) -> list[Row]:
    """A row for each certificate. Raises CommandError."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError as error:
        raise CommandError(f"{path} has no certificates in PEM form: {error}") from None
    return [
        {
            "file": str(path),
            "subject": item.subject.rfc4514_string(),
            "names": _names(item),
            "issuer": item.issuer.rfc4514_string(),
            "valid_until": _until(item),
            "state": _state(item),
        }
        for item in found
    ]


def _names(certificate: "x509.Certificate") -> list[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(item.value) for item in names]


def _state(certificate: "x509.Certificate") -> str:
    now = _now()
    if now >= certificate.not_valid_after_utc:
        return "expired"
    if now < certificate.not_valid_before_utc:
        return "not valid yet"
    return "expires soon" if certificate.not_valid_after_utc - now < SOON else "valid"


def _until(certificate: "x509.Certificate") -> str:
    return utc_time(int(certificate.not_valid_after_utc.timestamp() * 1000))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


VERBS = (
    Verb(name="ca", summary="make an authority; rotate it", arguments=_authority_arguments, run=_authority),
    Verb(name="broker", summary="make the key and certificate of a broker", arguments=_broker_arguments, run=_broker),
    Verb(name="client", summary="make the key and certificate of a client", arguments=_client_arguments, run=_client),
    Verb(
        name="show", summary="say whose certificates are in files, and until when", arguments=_show_arguments, run=_show
    ),
)
