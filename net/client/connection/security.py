"""The security settings of clients: the names that users of aiokafka and kafka-python know."""

import ssl
from typing import Any, Final, TypedDict

from barnabas.net.base.sasl.credentials import MECHANISMS, Credentials
from barnabas.net.base.sasl.exchange import OAUTHBEARER

from ...wire.network import Network
from ...wire.pem import authorities_of, certificate_of
from ...wire.tcp import LoginNetwork, TcpNetwork
from ...wire.tls import TlsContexts, TlsFiles, TlsRules
from .errors import InvalidConfigError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class SecurityOptions(TypedDict, total=False):
    """Keyword arguments of every client. Paths are of PEM files."""

    security_protocol: str  # One of PROTOCOLS; default: "PLAINTEXT".
    ssl_cafile: str  # Authorities that may have signed the brokers' certificates; default: those of the system.
    ssl_certfile: str  # The certificate that this client shows, if brokers demand one.
    ssl_keyfile: str  # Its private key; default: in the same file.
    ssl_password: str  # Of an encrypted private key.
    # PEM texts instead of files, as librdkafka names them.
    ssl_ca_pem: str
    ssl_certificate_pem: str
    ssl_key_pem: str
    ssl_check_hostname: bool  # Does a certificate have to name the host of the address? Default: True.
    sasl_mechanism: str  # "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN" or "OAUTHBEARER".
    sasl_plain_username: str  # Of all mechanisms with passwords, as in aiokafka and kafka-python.
    sasl_plain_password: str
    # Of OAUTHBEARER: a function, a coroutine function, or an object with such a method `token`, as in aiokafka and kafka-python.
    sasl_oauth_token_provider: Any


def network_of(options: SecurityOptions) -> Network:
    """The network that these options ask for. Reads the files. Raises InvalidConfigError, which never shows a password."""
    for name in options:
        if name not in SecurityOptions.__annotations__:
            raise TypeError(f"unexpected keyword argument {name!r}")  # As Python says it of any function.
    protocol = options.get("security_protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidConfigError(f"security_protocol is {protocol!r}; use {' or '.join(PROTOCOLS)}")
    for prefix, needed in (("ssl_", "SSL"), ("sasl_", "SASL")):
        without_effect = [name for name in options if name.startswith(prefix)]
        if without_effect and needed not in protocol.split("_"):
            cure = " or ".join(f'"{name}"' for name in PROTOCOLS if needed in name.split("_"))
            raise InvalidConfigError(f"{without_effect[0]} has no effect without security_protocol={cure}")
    tls = _tls(options) if protocol.endswith("SSL") else None
    return LoginNetwork(_credentials(options), tls) if protocol.startswith("SASL") else TcpNetwork(tls)


def tls_context_of(options: SecurityOptions) -> ssl.SSLContext | None:
    """Of a client that these options describe, for the HTTP port of a broker; None: plain text. Raises InvalidConfigError."""
    return _tls(options).client if options.get("security_protocol", "").upper().endswith("SSL") else None


def _tls(options: SecurityOptions) -> TlsContexts:
    for path, text in (("ssl_cafile", "ssl_ca_pem"), ("ssl_certfile", "ssl_certificate_pem")):
        if path in options and text in options:
            raise InvalidConfigError(f"set {path} or {text}, not both")
    if ("ssl_certificate_pem" in options) is not ("ssl_key_pem" in options):
        raise InvalidConfigError("set ssl_certificate_pem and ssl_key_pem, both or none of them")
    shown = None
    if "ssl_certificate_pem" in options:
        shown = certificate_of(
            options["ssl_key_pem"],
            options["ssl_certificate_pem"],
            key_setting="ssl_key_pem",
            chain_setting="ssl_certificate_pem",
        )
    files = TlsFiles(
        certificate=options.get("ssl_certfile"),
        key=options.get("ssl_keyfile"),
        key_password=options.get("ssl_password"),
        authorities=options.get("ssl_cafile"),
        certificate_pem=shown,
        authorities_pem=authorities_of(options["ssl_ca_pem"], "ssl_ca_pem") if "ssl_ca_pem" in options else None,
    )
    return TlsContexts(files, TlsRules(check_hostname=options.get("ssl_check_hostname", True)))


def _credentials(options: SecurityOptions) -> Credentials:
    mechanism = options.get("sasl_mechanism", "").upper()
    if mechanism not in MECHANISMS:
        raise InvalidConfigError(f"sasl_mechanism is {mechanism!r}; use {' or '.join(MECHANISMS)}")
    if mechanism == OAUTHBEARER:
        provider = options.get("sasl_oauth_token_provider")
        source = getattr(provider, "token", provider)
        if not callable(source):
            raise InvalidConfigError(
                "sasl_mechanism=OAUTHBEARER needs sasl_oauth_token_provider, which returns a token"
            )
        return Credentials(mechanism=mechanism, token_source=source)
    user, password = options.get("sasl_plain_username", ""), options.get("sasl_plain_password", "")
    if not user or not password:
        raise InvalidConfigError(f"sasl_mechanism={mechanism} needs sasl_plain_username and sasl_plain_password")
    return Credentials(mechanism=mechanism, user=user, password=password)
