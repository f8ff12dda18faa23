"""Kinds of values about principals: `super.users`, and `ssl.principal.mapping.rules` (KIP-371), which gives a client a name by
the subject of its certificate. Pure.

A rule is `RULE:pattern/replacement/` with an optional `L` or `U` (lower or upper case) behind it, or `DEFAULT`, which is the
subject itself. The first rule counts whose pattern matches the whole subject. Differs from Kafka: patterns are RE2's, which takes
linear time, because a subject comes from a client.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..vocabulary.errors import InvalidRequestError
from ..vocabulary.principal import parse_principal
from .kinds import ConfigType, Kind

DEFAULT: Final = "DEFAULT"
MAX_RULES: Final = 100  # each is tried for every connection
MAX_MEMORY_BYTES: Final = 256 * 1024  # of one compiled pattern
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SEPARATOR: Final = re.compile(r"\s*(?:,|\n|$)\s*")
_GROUP: Final = re.compile(r"\$(\d)|\\(.)")

# The names of RFC 2253 for what Python calls the attributes of a subject. Java writes the same.
_SHORT: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_EMAIL: Final = "1.2.840.113549.1.9.1"  # RFC 2253 has no name for it: its number, and the value in hexadecimal DER
_IA5_STRING: Final = 0x16
_SHORT_LENGTH: Final = 128  # DER: lengths below it take one byte


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalRule:
    """`pattern` None: DEFAULT."""

    text: str
    pattern: Any = None
    replacement: str = ""
    case: str = ""  # "L", "U" or ""

    def apply(self, subject: str) -> str | None:
        """The name; None: the rule does not match."""
        if self.pattern is None:
            return subject
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None
        name = _GROUP.sub(lambda mark: mark[2] or found.group(int(mark[1])) or "", self.replacement)
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)


PrincipalRules = tuple[PrincipalRule, ...]


def name_of(rules: PrincipalRules, subject: str) -> str | None:
    """The name of a client with this subject; None: no rule gives it one."""
    return next((name for name in (rule.apply(subject) for rule in rules) if name), None)


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The subject of a certificate, as the ssl module gives it, in the notation of RFC 2253: the last part first."""
    return ",".join("+".join(_attribute(kind, value) for kind, value in part) for part in reversed(subject))


def _attribute(kind: str, value: str) -> str:
    encoded = value.encode()
    if kind == "emailAddress" and len(encoded) < _SHORT_LENGTH:
        return f"{_EMAIL}=#{bytes((_IA5_STRING, len(encoded))).hex()}{encoded.hex()}"
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if escaped[:1] in ("#", " "):
        escaped = f"\\{escaped}"
    if escaped.endswith(" ") and len(escaped) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return f"{_SHORT.get(kind, kind)}={escaped}"


def _read_rules(text: str) -> PrincipalRules:
    rules: list[PrincipalRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is not None:
            rules.append(_rule(*found.group(0, 1, 2, 3)))
            position = found.end()
        elif text.startswith(DEFAULT, position):
            rules.append(PrincipalRule(text=DEFAULT))
            position += len(DEFAULT)
        else:
            raise ValueError(f"{text[position : position + 40]!r} is not a rule")
        separator = _SEPARATOR.match(text, position)
        if separator is None:
            raise ValueError(f"a comma is missing before {text[position : position + 40]!r}")
        position = separator.end()
    if not 0 < len(rules) <= MAX_RULES:
        raise ValueError(f"1 to {MAX_RULES} rules are allowed, not {len(rules)}")
    return tuple(rules)


def _rule(text: str, pattern: str, replacement: str, case: str) -> PrincipalRule:
    import re2  # only here: a broker without patterns needs 2.4 MB less

    options = re2.Options()
    options.max_mem = MAX_MEMORY_BYTES
    options.log_errors = False  # it would write to stderr
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression of RE2") from error
    unknown = [int(mark[1]) for mark in _GROUP.finditer(replacement) if mark[1] and int(mark[1]) > compiled.groups]
    if unknown:
        raise ValueError(f"{replacement!r} names the group ${unknown[0]}, and the pattern has {compiled.groups}")
    return PrincipalRule(text=text, pattern=compiled, replacement=replacement, case=case)


def _read_super_users(text: str) -> tuple[str, ...]:
    """Semicolons, because the names of certificates have commas."""
    try:
        return tuple(str(parse_principal(item.strip())) for item in text.split(";") if item.strip())
    except InvalidRequestError as error:
        raise ValueError(error.message) from None


SUPER_USERS: Final[Kind[tuple[str, ...]]] = Kind(
    type=ConfigType.STRING,
    allowed="principals like User:admin, separated by semicolons",
    read=_read_super_users,
    show=";".join,
)
PRINCIPAL_RULES: Final[Kind[PrincipalRules]] = Kind(
    type=ConfigType.STRING,
    allowed="rules separated by commas, each DEFAULT or RULE:pattern/replacement/ with L or U behind it",
    read=_read_rules,
    show=lambda rules: ",".join(rule.text for rule in rules),
)
DEFAULT_RULES: Final = _read_rules(DEFAULT)
