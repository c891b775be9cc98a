"""A format of these tests: one matrix for every depth, as another project might save a linear_prophet."""

from contextlib import contextmanager

import torch

from paceline.draft_heads.formats import FORMATS
from paceline.draft_heads.formats.base import Assumption, Exported, Format, FormatError, Imported, check_names
from paceline.draft_heads.formats.base import check_target as check_sizes
from paceline.draft_heads.linear_prophet import LinearProphetConfig


class TinyFormat(Format):
    """``steps.{i}.weight`` [H, H] for depth i."""

    name = "tiny"
    title = "Tiny (tests)"
    kinds = frozenset({"linear_prophet"})

    def matches(self, files):
        return "MedusaTinyModel" in files.architectures or (
            not files.architectures and files.has("steps.0.weight", "midlayer.none")
        )

    def read(self, files, target):
        depth, size = files.required("num_steps", int), target.config.hidden_size
        check_sizes(files, target, hidden_size=files.value("hidden_size", int))
        names = [f"steps.{step}.weight" for step in range(depth)]
        ignored = check_names(files, dict.fromkeys(names, (size, size)), optional={"midlayer.none": (1,)})
        return Imported(
            kind="linear_prophet",
            config=LinearProphetConfig(depth=depth),
            state={"maps.weight": torch.cat([files.tensor(name) for name in names])},
            assumptions=(
                Assumption("depth", depth, "config.json: num_steps"),
                Assumption("norm", "w * x", "the format"),
            ),
            ignored=ignored,
            tied=("lm_head.weight",),
            num_draft_tokens=files.value("advised", int),
        )

    def write(self, head, *, target, target_name, num_draft_tokens):
        if head.config.anchors is not None:
            raise FormatError(f"anchors={head.config.anchors}: the format holds none")
        steps = head.own_state()["maps.weight"].chunk(head.config.depth)
        return Exported(
            config={
                "architectures": ["MedusaTinyModel"],
                "num_steps": head.config.depth,
                "hidden_size": target.config.hidden_size,
                "advised": num_draft_tokens,
                "base_model_name_or_path": target_name,
            },
            tensors={f"steps.{index}.weight": step for index, step in enumerate(steps)},
            others={"README.md": f"of {target_name}\n"},
        )


class SecondFormat(TinyFormat):
    """Another one that takes the same files for its own."""

    name = "second"


class StitchedFormat(TinyFormat):
    """The same matrices inside a copy of the target's directory."""

    name = "stitched"

    def matches(self, files):
        return False

    def write(self, head, *, target, target_name, num_draft_tokens):
        made = super().write(head, target=target, target_name=target_name, num_draft_tokens=num_draft_tokens)
        return Exported(config={"num_steps": head.config.depth}, tensors=made.tensors, into_target=True)


@contextmanager
def registered(*formats):
    """FORMATS with these classes for a while."""
    before = dict(FORMATS.entries)
    FORMATS.entries.update({one.name: f"{one.__module__}:{one.__name__}" for one in formats})
    try:
        yield
    finally:
        FORMATS.entries.clear()
        FORMATS.entries.update(before)
