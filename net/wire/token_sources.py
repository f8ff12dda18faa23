"""Where clients get tokens from, if their configuration is a file: a file that another program renews, or the service that signs
them, which is asked with the client's own secret (RFC 6749, 4.4). Called in a thread for each login."""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from barnabas.log.vocabulary.errors import InvalidConfigError

from ..base.sasl.oauthbearer import MAX_TOKEN_LENGTH
from .downloads import download, is_protected

MAX_ANSWER_BYTES: Final = 4 * MAX_TOKEN_LENGTH  # there are other values beside the token
URL: Final = "sasl.oauthbearer.token.endpoint.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    path: str

    def token(self) -> str:
        """Raises OSError, ValueError."""
        with Path(self.path).open("rb") as file:
            found = file.read(MAX_TOKEN_LENGTH + 1)
        if len(found) > MAX_TOKEN_LENGTH:
            raise ValueError(f"{self.path} has more than {MAX_TOKEN_LENGTH} bytes, and is no token")
        if not found.isascii():  # the error of a decoder would show the file
            raise ValueError(f"{self.path} has bytes that are not ASCII, and is no token")
        return found.decode().strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecret:
    """Pickled, it contains the secret."""

    url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str = ""

    def token(self) -> str:
        """Raises OSError, ValueError, neither of which shows the secret or the token."""
        import urllib.error  # only here: clients start faster without them
        import urllib.request

        asked = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        who = f"{quote_plus(self.client_id)}:{quote_plus(self.secret)}".encode()  # RFC 6749, 2.3.1
        request = urllib.request.Request(
            self.url,
            data=urlencode(asked).encode(),
            headers={"Authorization": f"Basic {base64.b64encode(who).decode()}", "Accept": "application/json"},
        )
        try:
            # The secret is for this address alone.
            answer = download(request, MAX_ANSWER_BYTES + 1, may_lead_to=lambda url: False)
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"{self.url} answers {error.code}: is the client known there, with this secret?") from None
        except ValueError as error:
            raise ValueError(f"{URL}={self.url}: {error}; name the address that gives tokens itself") from error
        return _token_of(answer, self.url)


def token_source(url: str, *, client_id: str = "", secret: str = "", scope: str = "") -> TokenFile | ClientSecret:
    """Raises InvalidConfigError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return TokenFile(path=unquote(parts.path))
    if "@" in parts.netloc:
        raise InvalidConfigError(f"{URL} must not contain a name and a secret; use sasl.jaas.config for them")
    if not is_protected(url):
        raise InvalidConfigError(
            f"{URL}={url}: use file:///path or https://; over this scheme, others could read the secret"
        )
    if not client_id or not secret:
        raise InvalidConfigError(
            f"{URL}={url} needs the name and the secret of this client: sasl.jaas.config=OAuthBearerLoginModule required "
            'clientId="..." clientSecret="...";'
        )
    return ClientSecret(url=url, client_id=client_id, secret=secret, scope=scope)


def _token_of(answer: bytes, url: str) -> str:
    try:
        found = json.loads(answer) if len(answer) <= MAX_ANSWER_BYTES else None
    except ValueError:
        found = None  # its error would show the answer
    token = found.get("access_token") if isinstance(found, dict) else None
    if not isinstance(token, str) or not token or len(token) > MAX_TOKEN_LENGTH:
        raise ValueError(f"the answer of {url} has no access_token")
    return token
