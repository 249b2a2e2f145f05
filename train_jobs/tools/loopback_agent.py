"""Torchrun's agent of a first node, whose store can be reached from this machine alone.

    python -P loopback_agent.py SOCKET ARGUMENTS...

SOCKET is the descriptor of a socket that is bound to the rendezvous port on the loopback interface, and ARGUMENTS are
those of torchrun. Torch's store needs no password, and torchrun lets it listen on all interfaces, whatever
`--master-addr` names. Stores of one process with one port share a server (`multi_tenant`): the one that this file makes
first, on the given socket.
"""

from __future__ import annotations

import socket
import sys

from torch.distributed import TCPStore, run  # type: ignore[attr-defined]  # TCPStore is public by its documentation


def main(number: str, *words: str) -> None:
    """Serve the store on the socket with this number, and run torchrun with these arguments."""
    listener = socket.socket(fileno=int(number))
    address, port = listener.getsockname()
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )
    run.main(words)
    del store  # it had to live as long


if __name__ == "__main__":
    main(*sys.argv[1:])
