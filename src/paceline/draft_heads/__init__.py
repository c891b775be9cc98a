"""Parts beside a target that draft from its hidden states, one file each. Modules only: they know no step and no files.

``drafters`` calls a head while a draft grows, ``train`` unrolled over whole texts; both call the same modules.
"""

from paceline.core.registry import Registry

DRAFT_HEADS = Registry(
    "head",
    {
        "early_exit": "paceline.draft_heads.early_exit:EarlyExitHead",
        "linear_prophet": "paceline.draft_heads.linear_prophet:LinearProphetHead",
        "prophet": "paceline.draft_heads.prophet:ProphetHead",
    },
)
