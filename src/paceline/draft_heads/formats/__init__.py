"""Formats of draft heads that other projects save."""

from paceline.core.registry import Registry

FORMATS = Registry(
    "format",
    {
        "dflash": "paceline.draft_heads.formats.dflash:DFlashFormat",
        "dspark": "paceline.draft_heads.formats.dspark:DeepSpecFormat",
        "dspark_specforge": "paceline.draft_heads.formats.dspark:SpecForgeDSparkFormat",
        "speculators_dflash": "paceline.draft_heads.formats.speculators_block:SpeculatorsDFlashFormat",
        "speculators_dspark": "paceline.draft_heads.formats.speculators_block:SpeculatorsDSparkFormat",
    },
    group="paceline.head_formats",
    base="paceline.draft_heads.formats.base:Format",
)
