"""Draft heads that are known by name and not supported, with what supporting them would need."""

import re

from paceline.draft_heads.formats.base import HeadFiles

READ = ("dflash2", "xpress")  # in the layout of speculators alone
# The kind, a pattern of architectures, values of speculators_model_type or of dflash_config.projector_type, and needs.
_KINDS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (
        "LiLiCorr",
        r"LiLiCorr\w*",
        ("lilicorr",),
        "a block head whose candidates a two-layer correlator scores anew, and a description of its tensors",
    ),
    (
        "Arctic's MLP and LSTM speculator",
        r"Arctic\w*",
        (),
        "the gated and the recurrent state of Arctic's speculators, which IBM's MLP speculator does not have",
    ),
    (
        "XPress in another layout than that of speculators",
        r"\w*XPress\w*",
        ("xpress",),
        "a description of its tensors; heads that the package speculators saves are read",
    ),
    (
        "DFlash2 in another layout than that of speculators",
        r"\w*DFlash2\w*",
        ("dflash2",),
        "a description of its tensors; heads that the package speculators saves are read",
    ),
    (
        "Domino",
        r"\w*Domino\w*",
        ("domino",),
        "a block head with a recurrent network over the drafted tokens (prefix_gru)",
    ),
)


def why_unsupported(files: HeadFiles) -> str | None:
    """What kind of head ``files`` are of and what it would need, if it is known and not supported; else None."""
    projector = files.value("dflash_config.projector_type", str)
    for name, pattern, types, needs in () if files.speculators_type in READ else _KINDS:
        named = any(re.fullmatch(pattern, one) for one in files.architectures)
        if named or files.speculators_type in types or (projector is not None and projector in types):
            return f"{name} is not supported: it needs {needs}"
    method = files.mapping("quantization_config").get("quant_method")
    if files.config.get("quantization_config"):
        return f"its weights are quantised ({method}); give unquantised ones"
    return None
