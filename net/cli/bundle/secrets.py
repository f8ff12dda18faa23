"""Takes secrets out of what a bundle says. Pure.

Brokers do not tell the values of keys that are passwords. This is the second lock: it knows no table of keys, only what the names
of secrets have in common, and where texts hold them.
"""

import re
from typing import Any, Final

REMOVED: Final = "(removed)"
_NAME: Final = re.compile(
    r"passw|secret|jaas|token|credential|private|api.?key|keystore\.key|auth(?!or)", re.IGNORECASE
)
_IN_TEXT: Final = (  # with limits: a text of 4 MiB takes seconds at most, whatever a client has put into it
    re.compile(r"(?<=://)[^/\s:@]{0,200}:[^\s\"']{0,200}(?=@)"),  # user:password@ of a URL; a password may have / and @
    re.compile(
        r"((?:passwo?r?d|passphrase|pwd|secret|token|api.?key|user.?info)\\{0,4}[\"']?\s{0,9}[=:]\s{0,9})"
        r"(?:(\\{0,4}[\"'])(?:(?!\2)(?:\\.|.)){0,1000}(?:\2)?|[^\s\"',;]+)",  # in quotes, also in those of a JSON text in a text
        re.IGNORECASE | re.DOTALL,
    ),
    re.compile(r"(?<=://)[^/\s:@\"']{1,200}(?=@)"),  # a token in the place of user and password
    re.compile(r"(?i)(authorization:\s{0,9}\w{1,20}\s{1,9})\S+"),
    re.compile(r"(?i)(\b(?:bearer|basic)\s{1,9})[\w.~+/=-]{8,}"),
    re.compile(r"(?i)(--?(?:password|passphrase|secret|token|api.?key)\s{1,9})[^\s\"'-]\S*"),  # options of a command
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)
_SETTINGS: Final = ("key", "name")  # of an object that holds a setting
_VALUES: Final = ("value", "default", "of_file", "of_cluster")


def without_secrets(value: Any, name: str = "") -> Any:
    """`value` is made of JSON's types; `name` is the key at which it stands."""
    if isinstance(value, dict):
        told = next((value[key] for key in _SETTINGS if isinstance(value.get(key), str)), "")
        hidden = _VALUES if _NAME.search(told) else ()
        return {
            key: REMOVED if key in hidden and item is not None else without_secrets(item, str(key))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    if isinstance(value, bytes):  # of whatever meaning
        return REMOVED
    if isinstance(value, str):
        return REMOVED if value and _NAME.search(name) else clean_text(value)
    return value


def clean_text(text: str) -> str:
    for pattern in _IN_TEXT:
        text = pattern.sub(lambda found: (found[1] if found.re.groups else "") + REMOVED, text)
    return text
