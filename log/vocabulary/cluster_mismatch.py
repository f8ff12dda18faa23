"""The error text for data of one cluster that meets another cluster. All parts of a broker that detect it say the same."""


def cluster_mismatch(first: str, first_id: str, *others: tuple[str, str]) -> str:
    """`first` (a broker, a voter, a folder) belongs to cluster `first_id`, the others to theirs: (what, cluster id)."""
    rest = ", ".join(f"{what} to cluster {cluster_id}" for what, cluster_id in others)
    return (
        f"{first} belongs to cluster {first_id}, {rest}: mount the right data folder, use an empty one, or correct "
        "controller.quorum.voters; if the data folder of a voter was emptied by mistake, restore it"
    )
