"""What a secure local cluster (`barnabas up --secure`) needs: certificates, the first user, and the files for clients.

Layout beside the folders of the brokers: `security/ca.pem` and `security/ca.key` (the authority), `security/admin.pem` (key and
certificate of the first user), `security/admin.password` and `security/users` (what brokers know of that password without a
quorum), `<n>/broker.pem`, and `client.properties`.
"""

import datetime
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from barnabas.log.disk.secret_files import write_secret
from barnabas.log.vocabulary.access.scram import DEFAULT_ITERATIONS, ScramMechanism

from ..sasl.scram import SALT_BYTES, credential_for
from ..sasl.verifiers import user_line
from .certificates import (
    AUTHORITY,
    AUTHORITY_KEY,
    broker_certificate,
    client_certificate,
    make_authority,
    read_authority,
)
from .secure_layout import ADMIN, CLIENT_PROPERTIES, SECURITY, USUAL_PROTOCOL, has_logins, is_encrypted

BROKER_FILE: Final = "broker.pem"
USERS_FILE: Final = "users"
BROKERS: Final = "BROKERS"  # the listener of brokers, and of users with certificates
MECHANISM: Final = ScramMechanism.SHA_256
_PASSWORD_BYTES: Final = 18  # 24 characters


def prepare(folder: Path, addresses: Sequence[str], client_protocol: str = USUAL_PROTOCOL) -> None:
    """Make the authority and the first user's certificate if they are not there, and tell clients what to use.

    Raises InvalidConfigError (an authority that cannot be read), OSError.
    """
    home, now = folder.absolute() / SECURITY, datetime.datetime.now(datetime.UTC)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (home / AUTHORITY_KEY).exists() and not (home / AUTHORITY).exists():
        make_authority(home, f"barnabas {folder.absolute().name}", now=now)
    client_certificate_of(folder, ADMIN)
    password = password_of_admin(folder)
    told = client_properties(addresses, client_protocol, authority=home / AUTHORITY, password=password)
    write_secret(folder / CLIENT_PROPERTIES, told.encode())


def authority_file(folder: Path) -> Path:
    return folder.absolute() / SECURITY / AUTHORITY


def client_certificate_of(folder: Path, user: str) -> Path:
    """A file with the key and the certificate of a user, which is made if it is not there. Raises InvalidConfigError, OSError."""
    home = folder.absolute() / SECURITY
    path = home / f"{user}.pem"
    if not path.exists():
        now = datetime.datetime.now(datetime.UTC)
        write_secret(path, client_certificate(read_authority(home), user, now=now))
    return path


def password_of_admin(folder: Path) -> str:
    """That of the first user; made, with what brokers know of it, if it is not there. Raises OSError."""
    home = folder.absolute() / SECURITY
    path = home / f"{ADMIN}.password"
    if not path.exists():
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        salt = secrets.token_bytes(SALT_BYTES)
        credential = credential_for(MECHANISM, password, salt=salt, iterations=DEFAULT_ITERATIONS)
        write_secret(home / USERS_FILE, f"{user_line(ADMIN, MECHANISM, credential)}\n".encode())
        write_secret(path, f"{password}\n".encode())
    return path.read_text(encoding="utf-8").strip()


def broker_keys(folder: Path, node_id: int, host: str, client_protocol: str = USUAL_PROTOCOL) -> dict[str, str]:
    """Make a new certificate for a broker, and return the keys of its server.properties that use it."""
    home, own = folder.absolute() / SECURITY, folder.absolute() / str(node_id) / BROKER_FILE
    now = datetime.datetime.now(datetime.UTC)
    write_secret(own, broker_certificate(read_authority(home), node_id, (host, "localhost"), now=now))
    return {
        "ssl.keystore.location": str(own),
        "ssl.truststore.location": str(home / AUTHORITY),
        "ssl.client.auth": "required",
        "authorizer.class.name": "acl",
        "super.users": f"User:{ADMIN};User:CN={ADMIN}",
        "listener.security.protocol.map": f"{client_protocol}:{client_protocol},{BROKERS}:SSL",
        "inter.broker.listener.name": BROKERS,
        **(
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
                "sasl.users.file": str(home / USERS_FILE),
            }
            if has_logins(client_protocol)
            else {"listener.name.ssl.ssl.client.auth": "requested"}  # clients without a certificate are anonymous
        ),
    }


def client_properties(addresses: Sequence[str], client_protocol: str, *, authority: Path, password: str) -> str:
    """A file for Java's tools and `barnabas --command-config`; the comments have the names of other clients."""
    lines = [
        "# Java: kafka-topics.sh --command-config FILE; here: barnabas topic list --command-config FILE",
        f"bootstrap.servers={','.join(addresses)}",
        f"security.protocol={client_protocol}",
    ]
    python, rd = [f'"{addresses[0]}", security_protocol="{client_protocol}"'], [f"security.protocol={client_protocol}"]
    if is_encrypted(client_protocol):
        lines += ["ssl.truststore.type=PEM", f"ssl.truststore.location={authority}"]
        python.append(f'ssl_cafile="{authority}"')
        rd.append(f"ssl.ca.location={authority}")
    if has_logins(client_protocol):
        login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{ADMIN}" password="{password}";'
        lines += [f"sasl.mechanism={MECHANISM}", f"sasl.jaas.config={login}"]
        python.append(f'sasl_mechanism="{MECHANISM}", sasl_plain_username="{ADMIN}", sasl_plain_password=...')
        rd.append(f"sasl.mechanism={MECHANISM} sasl.username={ADMIN} sasl.password=...")
    lines += ["# Python (barnabas):", f"#   Producer({', '.join(python)})"]
    lines += ["# librdkafka (confluent-kafka, kcat -X):", f"#   {' '.join(rd)}"]
    return "\n".join(lines) + "\n"
