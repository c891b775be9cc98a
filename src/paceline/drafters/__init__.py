"""Everything that proposes tokens, one file each. A drafter never imports another."""

from paceline.core.registry import Registry

DRAFTERS = Registry(
    "drafter",
    {
        "none": "paceline.drafters.none:NoDrafter",
        "ngram": "paceline.drafters.ngram:NgramDrafter",
        "model": "paceline.drafters.model:ModelDrafter",
    },
)
