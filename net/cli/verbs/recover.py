"""`barnabas cluster recover`: make one voter's folder the whole quorum when most voters are lost. Offline; loses metadata."""

import os
import socket
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ..frame.command import key_value
from ..frame.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:  # help must not import the quorum's modules
    from barnabas.log.vocabulary.node_address import NodeAddress

CONNECT_TIMEOUT_S: Final = 2.0  # to each of the other voters


def recover_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="server.properties of the broker whose folder is kept; that broker must be stopped",
    )
    parser.add_argument("--override", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="perform the recovery; without this, only show what would be changed and lost",
    )


def recover(arguments: Namespace) -> int:
    from barnabas.kraft.metadata.records import RecordBatch, RecoveryRecord, encode_batch
    from barnabas.kraft.raft.disk.folder import JOURNAL_NAME, SNAPSHOT_NAME
    from barnabas.kraft.raft.recovery import NothingToRecover, inspect, make_sole_voter
    from barnabas.log.disk.files import RealFiles
    from barnabas.log.folders.log_folder import check_owner
    from barnabas.net.base.settings import config as configuration

    config = configuration.load(arguments.config, dict(arguments.override), os.environ)
    given = config.voters()
    folder, files = config.metadata_folder(), RealFiles()
    journal_path, snapshot_path = f"{folder}/{JOURNAL_NAME}", f"{folder}/{SNAPSHOT_NAME}"
    if not files.exists(folder):
        raise CommandError(f"there is no folder {folder}: give the configuration of a broker that was a voter")
    locks = [files.lock(f"{path}/.lock") for path in config.data_folders() if files.exists(path)]
    try:
        for path in config.data_folders():
            check_owner(files, path, config.node_id)
        found = inspect(files, journal_path=journal_path, snapshot_path=snapshot_path, given=given)
        own = [voter for voter in (*found.former_voters, *given) if voter.node_id == config.node_id]
        if not own:
            raise CommandError(
                f"node {config.node_id} was not a voter; use the folder of one of {_named(found.former_voters)}"
            )
        lost = [voter for voter in found.former_voters if voter.node_id != config.node_id]
        _refuse_if_alive(lost, count=len(found.former_voters))
        print(
            f"{folder} holds the metadata up to entry {found.last_index} of term {found.last_term}. Node {config.node_id} "
            f"becomes the only voter, in the same cluster.\n"
            f"Permanently lost: every change of metadata that was committed after entry {found.last_index}: topics, ISRs, "
            f"configurations, groups and their offsets. A partition whose in-sync and "
            f"eligible replicas are all lost has no leader until unclean.leader.election.enable=true lets another one lead. "
            f"If an ISR has shrunk since then, a replica without the newest records may lead. Brokers with newer metadata are "
            f"accepted again and report it in their logs; replicas of forgotten topics are set aside.\n"
            f"Before you start the broker: no other former voter ({_named(lost)}) may start with its old quorum folder again. "
            f"Empty __cluster_metadata there (keep the data folders). Start this broker first, and the others once it leads its "
            f"partitions, or a replica that was emptied may be elected; then `barnabas cluster voters add NODE` for each.",
            file=sys.stderr,
        )
        if not arguments.accept_loss:
            raise CommandError("nothing was changed; add --accept-loss to perform the recovery", ExitCode.USAGE)
        accepted = RecoveryRecord(recovery_epoch=int(time.time() * 1000))
        command = encode_batch(RecordBatch(controller_epoch=found.next_term, records=(accepted,)))
        make_sole_voter(files, journal_path=journal_path, found=found, voter=own[0], command=command)
    except NothingToRecover as error:
        raise CommandError(str(error)) from None
    finally:
        for lock in locks:
            lock.release()
    print(f"node {config.node_id} is the only voter now; start its broker")
    return ExitCode.OK


def _refuse_if_alive(others: "Sequence[NodeAddress]", *, count: int) -> None:
    """Two quorums of one cluster would both accept changes. Raises CommandError if most of the former voters answer."""
    alive = [voter for voter in others if _listens(voter)]
    if len(alive) > count // 2:
        told = ", ".join(f"{voter.node_id} at {voter.host}:{voter.port}" for voter in alive)
        raise CommandError(
            f"most voters are not lost: {told} can be connected to. Start this broker instead; to replace its folder, remove it "
            "from the voters and add it again (barnabas cluster voters). If those voters cannot form a quorum any more, stop "
            "them first"
        )


def _listens(voter: "NodeAddress") -> bool:
    try:
        with socket.create_connection((voter.host, voter.port), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _named(voters: "Iterable[NodeAddress]") -> str:
    return ", ".join(str(voter.node_id) for voter in voters) or "none"
