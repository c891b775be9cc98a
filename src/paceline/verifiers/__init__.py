"""Registry of verifiers: how many drafted tokens a step accepts, and which token follows them.

Packages of other people add theirs under the entry-point group ``paceline.verifiers``.
"""

from paceline.core.registry import Registry

VERIFIERS = Registry(
    "verifier",
    {
        "block": "paceline.verifiers.block:Block",
        "coupled": "paceline.verifiers.coupled:Coupled",
        "lossy_lenient": "paceline.verifiers.lossy_lenient:LossyLenient",
        "lossy_typical": "paceline.verifiers.lossy_typical:LossyTypical",
        "match": "paceline.verifiers.match:Match",
        "recursive": "paceline.verifiers.recursive:Recursive",
        "rejection": "paceline.verifiers.rejection:Rejection",
        "spectr": "paceline.verifiers.spectr:SpecTr",
        "traversal": "paceline.verifiers.traversal:Traversal",
    },
    group="paceline.verifiers",
    base="paceline.verifiers.base:Verifier",
)
