"""Where clients get tokens from, if their configuration is a file: a file that another program renews, or the service that signs
them, which is asked with the client's own secret (RFC 6749, 4.4). Called in a thread for each login."""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from barnabas.log.vocabulary.errors import InvalidConfigError

from ..sasl.oauthbearer import MAX_TOKEN_LENGTH
from ..settings.exposure import is_loopback

FETCH_TIMEOUT_S: Final = 10.0
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
        return found.decode("ascii").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecret:
    """Pickled, it contains the secret."""

    url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str = ""

    def token(self) -> str:
        """Raises OSError, ValueError, neither of which shows the secret or the token."""
        import http.client  # only here: clients start faster without them
        import urllib.error
        import urllib.request

        asked = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        who = f"{quote_plus(self.client_id)}:{quote_plus(self.secret)}".encode()  # RFC 6749, 2.3.1
        request = urllib.request.Request(
            self.url,
            data=urlencode(asked).encode(),
            headers={"Authorization": f"Basic {base64.b64encode(who).decode()}", "Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=FETCH_TIMEOUT_S) as answer:
                if answer.url != self.url:
                    raise ValueError(f"{self.url} leads to {answer.url}; name that address in {URL}")
                return _token_of(answer.read(MAX_ANSWER_BYTES + 1), self.url)
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"{self.url} answers {error.code}: is the client known there, with this secret?") from None
        except http.client.HTTPException as error:
            raise ValueError(f"{self.url} gives no valid answer of HTTP") from error


def token_source(url: str, *, client_id: str = "", secret: str = "", scope: str = "") -> TokenFile | ClientSecret:
    """Raises InvalidConfigError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return TokenFile(path=unquote(parts.path))
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
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
