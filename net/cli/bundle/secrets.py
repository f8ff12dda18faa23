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
_IN_TEXT: Final = (
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # user:password@ of a URL
    re.compile(r"(?i)((?:password|secret|token|api.?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]+"),
    re.compile(r"(?i)(authorization:\s*\w+\s+)\S+"),
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
    if isinstance(value, str):
        return REMOVED if value and _NAME.search(name) else clean_text(value)
    return value


def clean_text(text: str) -> str:
    for pattern in _IN_TEXT:
        text = pattern.sub(lambda found: (found[1] if found.re.groups else "") + REMOVED, text)
    return text
