"""Signed tokens (JWT, RFC 7519), checked with the keys of the service that signs them (JWKS, RFC 7517). Needs joserfc, which is
imported only where OAUTHBEARER is enabled. No I/O: the caller reads the keys."""

import json
from dataclasses import dataclass
from typing import Any, Final

from barnabas.log.vocabulary.access.scram import MAX_USER_LENGTH
from barnabas.log.vocabulary.errors import InvalidConfigError

from .exchange import Accepted, LoginRefused

# Asymmetric ones only: with a shared secret, each broker could sign tokens. `none` is no algorithm.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
MAX_KEYS_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must say."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()  # one of these
    user_claim: str = "sub"
    clock_skew_ms: int = 30_000


class JwtTokens:
    """Implements `Tokens`. The keys may be replaced at any time, from any thread."""

    def __init__(self, rules: TokenRules, keys: bytes) -> None:
        """Raises InvalidConfigError: the keys cannot be read, or joserfc is missing."""
        self._rules = rules
        self._keys = _read_keys(keys)

    def replace_keys(self, keys: bytes) -> None:
        """Raises InvalidConfigError, and keeps the former keys."""
        self._keys = _read_keys(keys)

    def accept(self, token: str, now_ms: int) -> Accepted:
        claims = self._claims(token)
        rules = self._rules
        expires_ms, from_ms = _time_ms(claims.get("exp")), _time_ms(claims.get("nbf", 0))
        if now_ms >= expires_ms + rules.clock_skew_ms:
            raise LoginRefused("the token has expired")
        if now_ms + rules.clock_skew_ms < from_ms:
            raise LoginRefused("the token is not valid yet")
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise LoginRefused("the token is of another issuer")
        told = claims.get("aud", [])
        audiences = told if isinstance(told, list) else [told]
        if rules.audiences and not any(item in rules.audiences for item in audiences):
            raise LoginRefused("the token is for another audience")
        user = claims.get(rules.user_claim)
        if not isinstance(user, str) or not user or len(user) > MAX_USER_LENGTH or not user.isprintable():
            raise LoginRefused(f"the claim {rules.user_claim} of the token is not the name of a user")
        return Accepted(user=user, expires_at_ms=expires_ms)

    def _claims(self, token: str) -> dict[str, Any]:
        """The claims, once the signature is right. Foreign exceptions end here: their texts may contain the token."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            return dict(jwt.decode(token, self._keys, algorithms=list(ALGORITHMS)).claims)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise LoginRefused(f"the token is not signed by a known key ({type(error).__name__})") from None


def _time_ms(value: object) -> int:
    """Raises LoginRefused."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**40:
        return int(value * 1000)
    raise LoginRefused("the token does not say when it expires, or not as a number")


def _read_keys(data: bytes) -> Any:
    try:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet
    except ImportError as error:
        raise InvalidConfigError("OAUTHBEARER needs joserfc: pip install 'barnabas[oauth]'") from error
    if len(data) > MAX_KEYS_BYTES:
        raise InvalidConfigError(f"the keys (JWKS) have more than {MAX_KEYS_BYTES} bytes")
    try:
        found = KeySet.import_key_set(json.loads(data))
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidConfigError(f"the keys (JWKS) cannot be read: {type(error).__name__}") from None
    if not found.keys or any(key.key_type == "oct" for key in found.keys):
        raise InvalidConfigError("the keys (JWKS) must be public keys, at least one; a shared secret is none")
    return found
