"""The keys of the service that signs tokens: read from a file or an address at the start, and again while the broker runs."""

import asyncio
import logging
from itertools import chain
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from barnabas.log.vocabulary.errors import InvalidConfigError

from ..base.sasl.exchange import OAUTHBEARER
from ..base.sasl.tokens import MAX_KEYS_BYTES, JwtTokens, TokenRules
from ..base.settings.config import BrokerConfig
from ..base.settings.listeners import mechanisms_of
from ..wire.downloads import download, is_protected

logger = logging.getLogger("barnabas.logins")

_KEY: Final = "sasl.oauthbearer.jwks.endpoint.url"


def tokens_of(config: BrokerConfig) -> JwtTokens | None:
    """Waits for a disk or a server. Raises InvalidConfigError."""
    of_listeners = (mechanisms_of(config, item.name) for item in config.client_listeners())
    if OAUTHBEARER not in {*config.sasl_enabled_mechanisms, *chain.from_iterable(of_listeners)}:
        return None
    rules = TokenRules(
        issuer=config.sasl_oauthbearer_expected_issuer,
        audiences=config.sasl_oauthbearer_expected_audience,
        user_claim=config.sasl_oauthbearer_sub_claim_name,
        clock_skew_ms=config.sasl_oauthbearer_clock_skew_seconds * 1000,
    )
    return JwtTokens(rules, _fetch(config))


async def keep_fresh(config: BrokerConfig, tokens: JwtTokens) -> None:
    """Keys that cannot be read leave the former ones in use, and the log says why."""
    while True:
        await asyncio.sleep(config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000)
        try:
            tokens.replace_keys(await asyncio.to_thread(_fetch, config))
        except InvalidConfigError as error:
            logger.error("event=token_keys_not_reloaded node=%d reason=%s", config.node_id, error.message)


def _fetch(config: BrokerConfig) -> bytes:
    url = config.sasl_oauthbearer_jwks_endpoint_url
    if url is None:
        raise InvalidConfigError(f"OAUTHBEARER needs {_KEY}: a file:/// or https:// address of the keys (JWKS)")
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            return Path(unquote(parts.path)).read_bytes()
        if is_protected(url):
            import urllib.request  # only here: a broker starts faster without it

            may_lead_to = _https if parts.scheme == "https" else is_protected
            return download(urllib.request.Request(url), MAX_KEYS_BYTES + 1, may_lead_to)
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"{_KEY}={url} cannot be read: {error}") from error
    raise InvalidConfigError(
        f"{_KEY}={url}: use file:///path or https://; over this scheme, others could replace the keys"
    )


def _https(url: str) -> bool:
    return urlsplit(url).scheme == "https"
