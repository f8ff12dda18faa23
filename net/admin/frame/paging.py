"""Pages of long lists: `page_size` and `page_token`, as in Confluent's APIs; `metadata.next` is the address of the next page.

A page begins behind the last key of the page before it, so that what is made or deleted meanwhile neither repeats nor hides
other items. Without `page_size` a list is whole, as in Kafka's REST API v3.
"""

import base64
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import urlencode

from .call import Call, Field, Json, Reply
from .errors import bad_request

MAX_PAGE: Final = 10_000
MAX_TOKEN_CHARS: Final = 1_000
PAGE: Final = (
    Field(name="page_size", type="integer", description=f"At most so many items, 1 to {MAX_PAGE}; default: all."),
    Field(name="page_token", type="string", description="Of `metadata.next` of the page before."),
)

K = TypeVar("K", str, int)


def paged(call: Call, kind: str, path: Sequence[object], keys: Sequence[K], shown: Callable[[K], Json | None]) -> Reply:
    """`keys` in rising order. `shown` makes an item; None: the caller may not see it. Only the items of the page are made."""
    size = call.query.get("page_size")
    token = call.query.get("page_token")
    if size is None:
        if token is not None:
            raise bad_request("page_token needs page_size, as in the address of the next page")
        return call.listed(kind, path, [item for key in keys if (item := shown(key)) is not None])
    if not 1 <= size <= MAX_PAGE:
        raise bad_request(f"page_size must be an integer between 1 and {MAX_PAGE}, not {size}")
    start = 0 if token is None else bisect_right(keys, _key(token, keys))
    data: list[Json] = []
    last: K | None = None
    for position in range(start, len(keys)):
        item = shown(keys[position])
        if item is None:
            continue
        if last is not None and len(data) == size:  # there is one more
            return _page(call, kind, path, data, _token(last), size)
        data.append(item)
        last = keys[position]
    return call.listed(kind, path, data)


def _page(call: Call, kind: str, path: Sequence[object], data: list[Json], token: str, size: int) -> Reply:
    url = f"{call.url(*path)}?{urlencode({'page_size': size, 'page_token': token})}"
    return Reply(body={"kind": kind, "metadata": {"self": call.url(*path), "next": url}, "data": data})


def _token(key: str | int) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _key(token: str, keys: Sequence[K]) -> K:
    """Raises ApiError. Of an empty list, any token is good: what it named is gone."""
    try:
        if len(token) > MAX_TOKEN_CHARS:
            raise ValueError
        found = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        found = None
    wanted = type(keys[0]) if keys else type(found)
    if type(found) is not wanted or found is None:
        raise bad_request("page_token is not one that this list has given; begin without it")
    key: K = found
    return key
