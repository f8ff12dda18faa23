"""TLS for both sides of a connection: contexts from PEM files, built again when a file has changed.

`TlsContexts` reads the files when it is built and in `reload_if_changed`; both wait for the disk, so a loop calls them in a
thread.
A connection uses the contexts of the moment when it begins. Open connections keep theirs.
"""

import os
import ssl
from dataclasses import dataclass, field
from typing import Final

from barnabas.log.vocabulary.errors import InvalidConfigError

from .pem import as_file

CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
HANDSHAKE_TIMEOUT_S: Final = 10.0  # A peer that is slower than this is not a client on any network.

# What OpenSSL calls bytes of a peer that are not TLS.
_NO_TLS: Final = ("HTTP_REQUEST", "RECORD_LAYER_FAILURE", "WRONG_VERSION_NUMBER")
_MOST_STEPS: Final = 10  # Of a handshake in memory; TLS 1.2 needs three.

Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. Error messages use `names`: the settings from which the user knows each file."""

    certificate: str | None = None  # The certificate and the certificates that sign it, in this order.
    key: str | None = None  # The private key; None: in the same file as the certificate.
    key_password: str | None = field(default=None, repr=False)
    authorities: str | None = None  # Certificates that the other side's may be signed by; None: those of the system.
    # What is in the configuration itself, as a file would have it: instead of `certificate` and `key`, and of `authorities`.
    certificate_pem: str | None = field(default=None, repr=False)
    authorities_pem: str | None = None

    @property
    def has_certificate(self) -> bool:
        return self.certificate is not None or self.certificate_pem is not None

    @property
    def certificate_name(self) -> str:
        """For error messages."""
        return "in the configuration" if self.certificate is None else self.certificate

    @property
    def authorities_name(self) -> str:
        in_configuration = "an authority in the configuration" if self.authorities_pem is not None else None
        return self.authorities or in_configuration or "an authority of the system"

    def stamp(self) -> Stamp:
        """What changes when a file changes. Raises InvalidConfigError if a file is missing."""
        found = []
        for path in (self.certificate, self.key, self.authorities):
            if path is not None:
                try:
                    state = os.stat(path)
                except OSError as error:
                    raise InvalidConfigError(f"the PEM file {path} cannot be read: {error.strerror}") from error
                found.append((path, state.st_mtime_ns, state.st_size, state.st_ino))
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsRules:
    """What this side demands of the other one."""

    client_auth: str = "none"  # A key of CLIENT_AUTH: whether clients must show a certificate.
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    check_hostname: bool = True  # Does a server's certificate have to name the host that was dialed?
    own_name: str | None = None  # The others, who have the same authorities, must accept our certificate for this name.


class TlsContexts:
    """`server` and `client` are the contexts for connections that begin now."""

    def __init__(self, files: TlsFiles, rules: TlsRules | None = None) -> None:
        """Raises InvalidConfigError: a file is missing, is not PEM, or the key does not fit."""
        self._files = files
        self._rules = rules or TlsRules()
        self._stamp = files.stamp()
        self._server, self._client = self._build()

    @property
    def server(self) -> ssl.SSLContext | None:
        """None: there is no certificate to show."""
        return self._server

    @property
    def client(self) -> ssl.SSLContext:
        return self._client

    def reload_if_changed(self) -> bool:
        """Read the files again if one has changed. Raises InvalidConfigError, and keeps the former contexts."""
        stamp = self._files.stamp()
        if stamp == self._stamp:
            return False
        # A file that changes from here on has another stamp, and is read the next time.
        self._server, self._client = self._build()
        self._stamp = stamp
        return True

    def server_now(self) -> ssl.SSLContext:
        """For a listener with a certificate. It asks for each connection: a context that was replaced would still resume the
        sessions of clients whose authority was removed."""
        assert self._server is not None, "a listener has a certificate"
        return self._server

    def _build(self) -> tuple[ssl.SSLContext | None, ssl.SSLContext]:
        server = self._server_context() if self._files.has_certificate else None
        client = self._client_context()
        if self._rules.own_name is not None and server is not None:
            _check_name(self._files, server, client, self._rules.own_name)
        return server, client

    def _server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = CLIENT_AUTH[self._rules.client_auth]
        self._fill(context)
        # Without them, a client that resumes a session is never asked for a certificate again. Sessions of TLS 1.2 may still be
        # resumed by their id, within two hours: `peer_of` looks at the certificate.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        return context

    def _client_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self._rules.check_hostname
        self._fill(context)
        return context

    def _fill(self, context: ssl.SSLContext) -> None:
        files = self._files
        context.minimum_version = min(VERSIONS[item] for item in self._rules.versions)
        context.maximum_version = max(VERSIONS[item] for item in self._rules.versions)
        context.options |= ssl.OP_NO_RENEGOTIATION
        if files.has_certificate:
            password = _Password(files.key_password)
            try:
                if files.certificate is not None:
                    context.load_cert_chain(files.certificate, files.key, password=password)
                else:
                    with as_file(files.certificate_pem or "") as path:
                        context.load_cert_chain(path, password=password)
            except (OSError, ValueError) as error:
                raise InvalidConfigError(_explain_certificate(files, error, password)) from error
        try:
            if files.authorities is not None:
                context.load_verify_locations(cafile=files.authorities)
            elif files.authorities_pem is not None:
                context.load_verify_locations(cadata=files.authorities_pem)
            elif context.verify_mode != ssl.CERT_NONE:
                context.load_default_certs()
        except OSError as error:
            raise InvalidConfigError(
                f"the PEM file of trusted certificates {files.authorities_name} cannot be used: {_reason(error)}"
            ) from error


class _Password:
    """OpenSSL asks for it only if the key is encrypted; without a function it would ask at the terminal."""

    def __init__(self, text: str | None) -> None:
        self._text = text
        self.was_used = False

    def __call__(self) -> str:
        if self._text is None:
            raise ValueError("the private key is encrypted, and no password is set")
        self.was_used = True
        return self._text


def _check_name(files: TlsFiles, server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Shake hands with ourselves, in memory. Raises InvalidConfigError: what the others would say to our certificate."""
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(there, here, server_hostname=name),
        server.wrap_bio(here, there, server_side=True),
    )
    try:
        for _ in range(_MOST_STEPS):
            if sum(_step(side) for side in sides) == len(sides):
                return
    except ssl.SSLCertVerificationError as error:
        raise InvalidConfigError(
            f"other brokers would not accept the certificate {files.certificate_name} for {name}: {error.verify_message}; "
            f"it must be signed by {files.authorities_name}, and contain the DNS name {name}"
        ) from error
    except ssl.SSLError as error:
        raise InvalidConfigError(f"the certificate {files.certificate_name} cannot be used: {error.reason}") from error
    raise InvalidConfigError(f"the certificate {files.certificate_name} cannot be used: the handshake does not end")


def _step(side: ssl.SSLObject) -> bool:
    """Has this side of a handshake in memory ended?"""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _explain_certificate(files: TlsFiles, error: Exception, password: _Password) -> str:
    places = files.certificate_name if files.key is None else f"{files.certificate} with the key {files.key}"
    is_wrong = password.was_used and getattr(error, "reason", None) != "KEY_VALUES_MISMATCH"
    reason = "the password of the private key is wrong" if is_wrong else _reason(error)
    return f"the certificate {places} cannot be used: {reason}"


def _reason(error: Exception) -> str:
    """OpenSSL's reasons in words that name the cure."""
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the private key does not belong to the certificate"
    if isinstance(error, ssl.SSLError) and (
        reason is None or reason in ("NO_START_LINE", "NO_CERTIFICATE_OR_CRL_FOUND")
    ):
        return "it must be in PEM format, and contain what is needed: -----BEGIN CERTIFICATE-----, and the private key"
    if isinstance(error, ssl.SSLError):
        return str(reason)
    return getattr(error, "strerror", None) or str(error)


def explain_handshake(error: BaseException) -> str:
    """Why a handshake failed, and what to change, for the side that has dialed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        told = error.verify_message
        cure = "make the client trust the authority that signed it (ssl_cafile), or dial a name that it contains"
        return f"the server's certificate is not accepted: {told}; {cure}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if reason in _NO_TLS:
            return "the port does not speak TLS; use a listener whose protocol is SSL, or security_protocol=PLAINTEXT"
        if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
            return "the server demands a certificate of the client (ssl_certfile, ssl_keyfile)"
        if "UNKNOWN_CA" in reason:
            return "the other side does not trust the authority that signed this side's certificate"
        return f"the TLS handshake failed: {reason}"
    return getattr(error, "strerror", None) or str(error)


def explain_refusal(error: ssl.SSLError) -> str:
    """Why a handshake failed, for the side that was dialed."""
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return "the client does not speak TLS"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client shows no certificate, and ssl.client.auth is required"
    return f"{reason}"
