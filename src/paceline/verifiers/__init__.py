"""Rules that decide how much of a draft is kept. Each is pure, vectorised and names the law it preserves.

Packages of other people add theirs under the entry-point group ``paceline.verifiers``.
"""

from paceline.core.registry import Registry

VERIFIERS = Registry(
    "verifier",
    {
        "coupled": "paceline.verifiers.coupled:Coupled",
        "rejection": "paceline.verifiers.rejection:Rejection",
    },
    group="paceline.verifiers",
    base="paceline.verifiers.base:Verifier",
)
