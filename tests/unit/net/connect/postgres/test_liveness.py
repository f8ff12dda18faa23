"""Connections that notice that the machine of the server is gone."""

from psycopg import conninfo

from barnabas.net.programs.connect.postgres.server import LIVENESS, with_liveness


def test_a_dsn_gets_limits_and_keeps_its_own() -> None:
    for dsn in ("host=h dbname='a b' password=x\\'y", "postgresql://u:p%40@h:1/d?sslmode=require"):
        before, found = conninfo.conninfo_to_dict(dsn), conninfo.conninfo_to_dict(with_liveness(dsn))
        assert found == before | {name: str(value) for name, value in LIVENESS.items()}
    assert conninfo.conninfo_to_dict(with_liveness("tcp_user_timeout=7"))["tcp_user_timeout"] == "7"
