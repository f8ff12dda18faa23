"""`scripts/benchmark tls`: what TLS costs: a produce and a fetch of 64 KB beside plain text, and handshakes.

One broker has a listener of each kind. CPU time of its process per request, and elapsed time with five requests in flight, by a
blocking socket; the listeners take turns in one run, so that a busy moment of the machine meets both. A handshake is a new
connection with the certificate of a user, and one request; beside it a connection in plain text with the same request.
"""

import argparse
import ssl
import statistics
import struct
import time

from both_protocols import Client, Side, cpu_ns, fetch, produce
from clusters import Cluster

CASES = {"produce v9 acks=1": produce(9, 1), "produce v9 acks=all": produce(9, -1), "fetch v12": fetch(12)}
# The listener for logins is one in plain text here; the one of brokers has TLS.
PLAIN_AND_TLS = {
    "listener_security_protocol_map": "SASL_SSL:PLAINTEXT,BROKERS:SSL",
    "super_users": "User:ANONYMOUS;User:CN=admin",
    "log_retention_bytes": str(256 << 20),
    "log_segment_bytes": str(64 << 20),
}
API_VERSIONS = struct.pack(">ihhih", 11, 18, 0, 7, 1) + b"b"
Cost = tuple[float, float]  # microseconds of the broker's CPU, and elapsed ones, of a request


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark tls", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=400, help="requests per turn; default: 400")
    parser.add_argument("--turns", type=int, default=25, help="turns of each listener; default: 25")
    options = parser.parse_args(arguments)
    with Cluster(1, secure=True, **PLAIN_AND_TLS) as cluster:
        (pid,), (broker,) = cluster.pids(), cluster.brokers
        home = broker.folder.parent / "security"
        context = ssl.create_default_context(cafile=home / "ca.pem")
        context.load_cert_chain(home / "admin.pem")
        properties = dict(line.split("=", 1) for line in (broker.folder / "server.properties").read_text().splitlines())
        plain, encrypted = (_address(item) for item in properties["listeners"].split(","))
        ways: list[tuple[tuple[str, int], ssl.SSLContext | None]] = [(plain, None), (encrypted, context)]
        for number, (case, make) in enumerate(CASES.items()):
            topic = f"bench-{number}"
            cluster.create(topic, partitions=1)
            _, side = make(cluster, topic)
            clients = [Client(address, side, tls) for address, tls in ways]
            for client in clients:
                client.run(options.requests)
            _show(case, [_turn(pid, clients, options.requests, turn) for turn in range(options.turns)])
            for client in clients:
                client.close()
            cluster.delete(topic)
        side = Side(name="Kafka's", preamble=b"", frames=[API_VERSIONS], answer_bytes=10)
        _show(
            "new connection",
            [[_connections(pid, side, address, tls) for address, tls in ways] for _ in range(options.turns)],
            ("cpu",),  # a client waits for some milliseconds after its requests
        )
    return 0


def _address(listener: str) -> tuple[str, int]:
    host, _, port = listener.rpartition("//")[2].rpartition(":")
    return host, int(port)


def _turn(pid: int, clients: list[Client], requests: int, turn: int) -> list[Cost]:
    found: dict[int, Cost] = {}
    for index in (0, 1) if turn % 2 == 0 else (1, 0):  # the second one has warmer caches
        cpu, began = cpu_ns(pid), time.perf_counter_ns()
        clients[index].run(requests)
        found[index] = ((cpu_ns(pid) - cpu) / requests / 1000, (time.perf_counter_ns() - began) / requests / 1000)
    return [found[0], found[1]]


def _connections(pid: int, side: Side, address: tuple[str, int], tls: ssl.SSLContext | None, count: int = 20) -> Cost:
    cpu, began = cpu_ns(pid), time.perf_counter_ns()
    for _ in range(count):
        client = Client(address, side, tls)
        client.run(1)
        client.close()
    return (cpu_ns(pid) - cpu) / count / 1000, (time.perf_counter_ns() - began) / count / 1000


def _show(case: str, turns: list[list[Cost]], kinds: tuple[str, ...] = ("cpu", "elapsed")) -> None:
    told = []
    for kind, what in enumerate(kinds):
        plain, encrypted = ([turn[way][kind] for turn in turns] for way in (0, 1))
        low, ratio, high = statistics.quantiles([e / p for p, e in zip(plain, encrypted, strict=True)], n=4)
        told.append(
            f"{what}: plain {statistics.median(plain):6.0f} us  TLS {statistics.median(encrypted):6.0f} us  "
            f"ratio {ratio:.2f} ({low:.2f} to {high:.2f})"
        )
    print(f"{case:<20} {'   '.join(told)}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main([]))
