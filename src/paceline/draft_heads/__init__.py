"""Draft heads: modules that draft from the target's hidden states.

``drafters`` calls them while a draft grows, ``train`` unrolls them over whole sequences; both call the same modules.
"""

from paceline.core.registry import Registry

DRAFT_HEADS = Registry(
    "head",
    {
        "block": "paceline.draft_heads.block:BlockHead",
        "eagle": "paceline.draft_heads.eagle:EagleHead",
        "eagle3": "paceline.draft_heads.eagle3:Eagle3Head",
        "early_exit": "paceline.draft_heads.early_exit:EarlyExitHead",
        "hydra": "paceline.draft_heads.hydra:HydraHead",
        "linear_prophet": "paceline.draft_heads.linear_prophet:LinearProphetHead",
        "medusa": "paceline.draft_heads.medusa:MedusaHead",
        "mlp_speculator": "paceline.draft_heads.mlp_speculator:MLPSpeculatorHead",
        "mtp": "paceline.draft_heads.mtp:MTPHead",
        "prophet": "paceline.draft_heads.prophet:ProphetHead",
    },
)
