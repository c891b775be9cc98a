"""Formats of draft heads that other projects save."""

from paceline.core.registry import Registry

FORMATS = Registry(
    "format",
    {
        "dflash": "paceline.draft_heads.formats.dflash:DFlashFormat",
        "dspark": "paceline.draft_heads.formats.dspark:DeepSpecFormat",
        "dspark_specforge": "paceline.draft_heads.formats.dspark:SpecForgeDSparkFormat",
        "hydra": "paceline.draft_heads.formats.hydra:HydraFormat",
        "medusa": "paceline.draft_heads.formats.medusa:FasterDecodingFormat",
        "medusa_vllm": "paceline.draft_heads.formats.medusa:VLLMMedusaFormat",
        "mlp_speculator": "paceline.draft_heads.formats.mlp_speculator:MLPSpeculatorFormat",
        "speculators_dflash": "paceline.draft_heads.formats.speculators_block:SpeculatorsDFlashFormat",
        "speculators_dspark": "paceline.draft_heads.formats.speculators_block:SpeculatorsDSparkFormat",
    },
    group="paceline.head_formats",
    base="paceline.draft_heads.formats.base:Format",
)
