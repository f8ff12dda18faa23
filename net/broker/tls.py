"""The TLS of one broker: which listener is encrypted, what the voters demand of each other, and new files while it runs."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from barnabas.kraft.raft.net.mutual_tls import MutualTls, tls_name
from barnabas.kraft.raft.net.network import BACKLOG, Listener, LoopNetwork, ProtocolFactory
from barnabas.log.settings import listener_keys
from barnabas.log.vocabulary.errors import InvalidConfigError

from ..base.settings.config import BrokerConfig
from ..base.settings.listeners import (
    accepts_plain_text,
    broker_login,
    dials_plain_text,
    has_logins,
    is_admin_encrypted,
    is_encrypted,
    is_quorum_encrypted,
)
from ..wire.network import Network
from ..wire.pem import authorities_of, certificate_of
from ..wire.tcp import BrokerLoginNetwork, ListeningServer, TcpListener, TcpNetwork
from ..wire.tls import TlsContexts, TlsFiles, TlsRules

logger = logging.getLogger("barnabas.tls")

_STRICTNESS: Final = ("none", "requested", "required")  # of ssl.client.auth
RELOAD_S: Final = 5.0  # how soon new files are used


def _least(*demands: str) -> str:
    return min(demands, key=_STRICTNESS.index)


def _greatest(*demands: str) -> str:
    return max(demands, key=_STRICTNESS.index)


def tls_of(config: BrokerConfig) -> "BrokerTls | None":
    """None: nothing is encrypted. Reads files. Raises InvalidConfigError."""
    if accepts_plain_text(config):
        logger.warning(
            "event=tls_transition node=%d step=%s: the ports of brokers and voters also accept plain text; restart all brokers "
            "without tls.transition to end this",
            config.node_id,
            config.tls_transition,
        )
    encrypted = any(is_encrypted(config, item.name) for item in config.client_listeners())
    return BrokerTls(config) if encrypted or is_admin_encrypted(config) else None


class QuorumNetwork(LoopNetwork):
    """TCP with a limit of connections in the TLS handshake: the transport of the quorum counts strangers only after it."""

    async def listen(
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        sock: socket.socket | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        also_plain: bool = False,
    ) -> Listener:
        if tls is None:
            return await super().listen(protocol_factory, host, port, sock=sock, tls=tls)
        if sock is None:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
        sock.setblocking(False)
        return ListeningServer(TcpListener(sock, protocol_factory, tls, also_plain=also_plain), sock)


def _files_of(config: BrokerConfig) -> TlsFiles:
    """Raises InvalidConfigError: what is in the configuration itself is not PEM."""
    key, chain, trusted = (
        config.ssl_keystore_key,
        config.ssl_keystore_certificate_chain,
        config.ssl_truststore_certificates,
    )
    shown = None
    if key is not None and chain is not None:
        shown = certificate_of(
            key, chain, key_setting="ssl.keystore.key", chain_setting="ssl.keystore.certificate.chain"
        )
    return TlsFiles(
        certificate=config.ssl_keystore_location,
        key_password=config.ssl_key_password,
        authorities=config.ssl_truststore_location,
        certificate_pem=shown,
        authorities_pem=None if trusted is None else authorities_of(trusted, "ssl.truststore.certificates"),
    )


def configured_certificates(config: BrokerConfig) -> dict[str, str]:
    """Those that any listener has in the configuration itself, by key, as PEM files have them."""
    found = {}
    for listener in (None, *config.of_listeners):
        files = _files_of(config if listener is None else config.for_listener(listener))
        prefix = "" if listener is None else f"{listener_keys.PREFIX}{listener.lower()}."
        if files.certificate_pem is not None:
            found[f"{prefix}ssl.keystore.certificate.chain"] = files.certificate_pem
        if files.authorities_pem is not None:
            found[f"{prefix}ssl.truststore.certificates"] = files.authorities_pem
    return found


class BrokerTls:
    """Listeners with equal settings share their contexts."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises InvalidConfigError, also if other brokers would not accept our certificate."""
        self._config = config
        self._contexts: dict[tuple[TlsFiles, TlsRules], TlsContexts] = {}
        self._of_listeners: dict[str, TlsContexts] = {}
        for item in config.client_listeners():
            if is_encrypted(config, item.name):
                self._of_listeners[item.name] = self._made(item.name, self._asked(item.name))
        self._of_callers: TlsContexts | None = None
        admin = config.admin_address()
        if admin is not None and is_admin_encrypted(config):
            own = config.for_listener(admin.name).ssl_client_auth
            # Callers of the HTTP API may log in with a password instead, where permissions say what they may do.
            asked = own if config.authorizer_class_name is None else _least(own, "requested")
            self._of_callers = self._made(admin.name, _greatest(asked, self._own_demand(admin.name)))
        self._of_voters: TlsContexts | None = None
        if is_quorum_encrypted(config):
            self._of_voters = self._made(config.inter_broker_listener(), "required", tls_name(config.node_id))

    def _asked(self, listener: str) -> str:
        """As in Kafka, ssl.client.auth is about listeners where the certificate says who the client is; a listener with logins
        demands one if its own key says so (KIP-684). Where brokers log in, they also show theirs, and other clients need none."""
        if not has_logins(self._config, listener):
            return self._config.for_listener(listener).ssl_client_auth
        asked = "requested" if listener == self._config.inter_broker_listener() else "none"
        return _greatest(asked, self._own_demand(listener))

    def _own_demand(self, listener: str) -> str:
        """What the listener asks for by its own key."""
        found: str = self._config.of_listeners.get(listener, {}).get("ssl.client.auth", "none")
        return found

    def _made(self, listener: str, client_auth: str, own_name: str | None = None) -> TlsContexts:
        """Of the settings of a listener. Reads files. Raises InvalidConfigError."""
        own = self._config.for_listener(listener)
        files = _files_of(own)
        rules = TlsRules(client_auth=client_auth, versions=own.ssl_enabled_protocols, own_name=own_name)
        found = self._contexts.get((files, rules))
        if found is None:
            found = self._contexts[files, rules] = TlsContexts(files, rules)
        return found

    def network(self, listener: str) -> Network:
        """For the connections that this listener accepts, and for those to the same listener of other brokers."""
        contexts = self._of_listeners.get(listener)
        if contexts is None:
            return TcpNetwork()
        if listener != self._config.inter_broker_listener():
            return TcpNetwork(contexts)
        login = broker_login(self._config)
        if login is not None:
            return BrokerLoginNetwork(login, contexts)
        return TcpNetwork(
            contexts, also_plain=accepts_plain_text(self._config), dials_plain=dials_plain_text(self._config)
        )

    def quorum(self) -> MutualTls | None:
        voters = self._of_voters
        if voters is None:
            return None
        return MutualTls(
            server=voters.server_now,
            client=lambda: voters.client,
            also_plain=accepts_plain_text(self._config),
            dials_plain=dials_plain_text(self._config),
        )

    def admin(self) -> Callable[[], ssl.SSLContext] | None:
        """The context for a connection that arrives now."""
        return None if self._of_callers is None else self._of_callers.server_now

    async def keep_fresh(self) -> None:
        """Use new files soon after they are there. While they are wrong, the former certificates stay, and the log says why."""
        told = ""
        while True:
            await asyncio.sleep(RELOAD_S)
            try:
                if await asyncio.to_thread(self._reload):
                    logger.info("event=certificates_reloaded node=%d", self._config.node_id)
                told = ""
            except InvalidConfigError as error:
                if error.message != told:  # the same problem is logged once
                    told = error.message
                    logger.error("event=certificates_not_reloaded node=%d reason=%s", self._config.node_id, told)

    def _reload(self) -> bool:
        """Each context on its own: a wrong file of one listener keeps no other from its new one. Raises InvalidConfigError."""
        changed, wrong = False, []
        for contexts in self._contexts.values():
            try:
                changed = contexts.reload_if_changed() or changed
            except InvalidConfigError as error:
                wrong.append(error.message)
        if wrong:
            raise InvalidConfigError("; ".join(dict.fromkeys(wrong)))
        return changed
