"""Formats of draft heads that other projects save."""

from paceline.core.registry import Registry

FORMATS = Registry(
    "format",
    {
        "dflash": "paceline.draft_heads.formats.dflash:DFlashFormat",
        "dspark": "paceline.draft_heads.formats.dspark:DeepSpecFormat",
        "dspark_specforge": "paceline.draft_heads.formats.dspark:SpecForgeDSparkFormat",
        "eagle": "paceline.draft_heads.formats.eagle:EagleFormat",
        "eagle3": "paceline.draft_heads.formats.eagle3:SafeAILabEagle3Format",
        "eagle3_deepspec": "paceline.draft_heads.formats.eagle3:DeepSpecEagle3Format",
        "hydra": "paceline.draft_heads.formats.hydra:HydraFormat",
        "medusa": "paceline.draft_heads.formats.medusa:FasterDecodingFormat",
        "medusa_vllm": "paceline.draft_heads.formats.medusa:VLLMMedusaFormat",
        "mlp_speculator": "paceline.draft_heads.formats.mlp_speculator:MLPSpeculatorFormat",
        "mtp_deepseek": "paceline.draft_heads.formats.mtp_layers:DeepSeekFormat",
        "mtp_mimo": "paceline.draft_heads.formats.mtp_layers:MiMoFormat",
        "mtp_qwen": "paceline.draft_heads.formats.mtp_layers:QwenFormat",
        "speculators_eagle3": "paceline.draft_heads.formats.speculators_eagle3:SpeculatorsEagle3Format",
        "speculators_dflash": "paceline.draft_heads.formats.speculators_block:SpeculatorsDFlashFormat",
        "speculators_dflash2": "paceline.draft_heads.formats.speculators_block:SpeculatorsDFlash2Format",
        "speculators_dspark": "paceline.draft_heads.formats.speculators_block:SpeculatorsDSparkFormat",
        "speculators_mtp": "paceline.draft_heads.formats.speculators_mtp:SpeculatorsMTPFormat",
        "speculators_peagle": "paceline.draft_heads.formats.speculators_eagle3:SpeculatorsPEagleFormat",
        "speculators_xpress": "paceline.draft_heads.formats.speculators_block:SpeculatorsXPressFormat",
    },
    group="paceline.head_formats",
    base="paceline.draft_heads.formats.base:Format",
)
