"""gzip for callers that accept it: long answers in a thread, a few at a time."""

import asyncio
import gzip
import re
from typing import Final

from aiohttp import web

LEAST_BYTES: Final = 1_024  # shorter answers gain nothing
AT_ONCE_BYTES: Final = 32 * 1_024  # longer ones are packed in a thread; about 0.5 ms of the loop
THREADS: Final = 2  # answers in threads; while as many are packed, others are sent as they are
LEVEL: Final = 3  # a third of the time of the usual 6, for a tenth more bytes
_GZIP: Final = re.compile(r"(?:^|,)\s*(?:gzip|x-gzip|\*)\s*(?:;\s*q=([0-9.]+))?\s*(?=,|$)", re.IGNORECASE)


class Packing:
    """One for each admin API."""

    def __init__(self) -> None:
        self._busy = 0

    async def packed(self, request: web.Request, response: web.Response) -> web.Response:
        """The same response, packed where that is of use."""
        body = response.body
        if not isinstance(body, bytes | bytearray) or len(body) < LEAST_BYTES or "ETag" in response.headers:
            return response  # the tag of a file is of its bytes
        response.headers["Vary"] = "Accept-Encoding"
        if request.method != "GET" or not accepts_gzip(request.headers.get("Accept-Encoding", "")):
            return response
        if len(body) <= AT_ONCE_BYTES:
            packed = gzip.compress(body, LEVEL, mtime=0)
        elif self._busy >= THREADS:
            return response
        else:
            self._busy += 1
            try:
                packed = await asyncio.to_thread(gzip.compress, body, LEVEL, mtime=0)
            finally:
                self._busy -= 1
        response.body = packed
        response.headers["Content-Encoding"] = "gzip"
        return response


def accepts_gzip(header: str) -> bool:
    """RFC 9110, 12.5.3. A weight of 0 refuses; the first mention counts."""
    found = _GZIP.search(header[:1_000])
    if found is None:
        return False
    try:
        return found[1] is None or float(found[1]) > 0
    except ValueError:
        return False
