"""Other people's decoders in the same benchmark, each with its best settings. Times nothing.

transformers runs in our own process; vLLM and llama.cpp are programs that their user installed, and may be missing.
"""

from collections.abc import Sequence
from pathlib import Path

import paceline.models.adapter  # noqa: F401  before transformers imports torchao with its warnings
from paceline.bench.peers import llama_cpp, vllm
from paceline.bench.peers.base import Peer, PeerSettings, PeerUnavailable
from paceline.bench.peers.transformers import TRANSFORMERS, Transformers

PEERS = (TRANSFORMERS, vllm.VLLM, llama_cpp.LLAMA_CPP)


def find_peers(
    names: Sequence[str],
    setting: PeerSettings,
    *,
    vllm_python: Path | None,
    llama_cpp_folder: Path | None,
    num_open: int = 1,
) -> list[Peer | PeerUnavailable]:
    """Those of PEERS that ``names`` names, found or missing, in the order of PEERS. Loads no model.

    A peer that is there is followed by those of its ways that are missing.
    Of the programs of each, ``num_open`` are held open at most: a further one ends the oldest.
    Raises ValueError for a name that is none of them.
    """
    for name in names:
        if name not in PEERS:
            raise ValueError(f"unknown peer {name}; known: {', '.join(PEERS)}")
    found: list[Peer | PeerUnavailable] = []
    if TRANSFORMERS in names:
        found.append(Transformers(setting=setting))
    if vllm.VLLM in names:
        peer = vllm.find(vllm_python, setting, num_open=num_open)
        found += [peer] if isinstance(peer, PeerUnavailable) else [peer, *vllm.missing_ways(peer)]
    if llama_cpp.LLAMA_CPP in names:
        found.append(llama_cpp.find(llama_cpp_folder, setting, num_open=num_open))
    return found
