"""What a cluster has beside the containers of its compose file."""


class Single:
    """Two schedulers, three workers, one PostgreSQL, one broker."""

    name = "single"

    def extend(self, cluster, more):
        """Adds to the compose override."""

    def prepare(self, cluster):
        """Before the containers start."""

    def complete(self, cluster):
        """Before the cluster is used."""

    def is_whole(self, cluster):
        """Whether its servers are as before a fault, so that the next fault finds what the last one found."""
        return True

    def remove(self, cluster):
        """After the end of the containers."""


SETUPS = {setup.name: setup for setup in (Single(),)}
