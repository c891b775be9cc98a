"""Registry of drafters, which propose tokens for the target to verify. A drafter never imports another.

Packages of other people add theirs under the entry-point group ``paceline.drafters``.
"""

from paceline.core.registry import Registry

DRAFTERS = Registry(
    "drafter",
    {
        "none": "paceline.drafters.none:NoDrafter",
        "ngram": "paceline.drafters.ngram:NgramDrafter",
        "copy": "paceline.drafters.copy:CopyDrafter",
        "suffix": "paceline.drafters.suffix:SuffixDrafter",
        "retrieval": "paceline.drafters.retrieval:RetrievalDrafter",
        "lookahead": "paceline.drafters.lookahead:LookaheadDrafter",
        "early_exit": "paceline.drafters.early_exit:EarlyExitDrafter",
        "layer_skip": "paceline.drafters.layer_skip:LayerSkipDrafter",
        "model": "paceline.drafters.model:ModelDrafter",
        "staged": "paceline.drafters.staged:StagedDrafter",
        "cascade": "paceline.drafters.cascade:CascadeDrafter",
        "slem": "paceline.drafters.slem:SlemDrafter",
        "prophet": "paceline.drafters.prophet:ProphetDrafter",
        "linear_prophet": "paceline.drafters.linear_prophet:LinearProphetDrafter",
        "medusa": "paceline.drafters.medusa:MedusaDrafter",
        "hydra": "paceline.drafters.hydra:HydraDrafter",
        "mlp_speculator": "paceline.drafters.mlp_speculator:MLPSpeculatorDrafter",
        "block": "paceline.drafters.block:BlockDrafter",
        "eagle": "paceline.drafters.eagle:EagleDrafter",
        "eagle3": "paceline.drafters.eagle3:Eagle3Drafter",
        "mtp": "paceline.drafters.mtp:MTPDrafter",
    },
    group="paceline.drafters",
    base="paceline.drafters.base:Drafter",
)
