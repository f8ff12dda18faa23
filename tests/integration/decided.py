"""Commits that were answered, and readers of committed records: the coordinator writes the markers after its answer."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from integration.cluster import until

from barnabas.log.vocabulary.transaction_messages import TransactionState
from barnabas.net.client.admin.admin import Admin

STATES = tuple(state for state in TransactionState if state.is_decided)


async def markers_written(bootstrap: str) -> None:
    """Of all transactions that are decided now. Before that, a topic ends before their records for readers of committed ones."""
    async with Admin(bootstrap) as admin:
        waiting = await _decided(admin)

        async def are_complete() -> bool:
            nonlocal waiting
            waiting &= await _decided(admin)
            return not waiting

        if waiting:
            await until(are_complete, "the markers of decided transactions are written")


async def _decided(admin: Admin) -> set[tuple[str, int, int]]:
    found = await admin.transactions.list(states=STATES)
    return {(item.transactional_id, item.producer_id, item.producer_epoch) for item in found.transactions}


def wait_for_markers(bootstrap: str) -> None:
    """`markers_written` for callers that block, also on the thread of an event loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, markers_written(bootstrap)).result()
