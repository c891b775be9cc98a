"""Builds the drafter ``layer_skip`` from its options as text."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from paceline.api.loading import Loaded
from paceline.api.skip_sets import FILE_NAME, native_target, read_set, set_path
from paceline.drafters import DRAFTERS
from paceline.drafters.base import Drafter
from paceline.drafters.sublayer_search import OnTheFly
from paceline.models.sublayers import SkippedSublayers, parse_layers

NAME = "layer_skip"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSkip:
    """What is skipped: the layers of ``attention`` and ``mlp``, such as 3-5;8, or the set in ``skip``, a file that
    ``paceline skip-search`` wrote or its directory. Without any of these, the set that was found for the target.

    With ``on_the_fly`` the set is chosen while decoding, ``ratio`` of all sub-layers at random by ``seed``, and what is
    given is where it begins. Raises ValueError for options that contradict each other, and for what is no layer.
    """

    attention: str | None = None
    mlp: str | None = None
    skip: str | None = None
    on_the_fly: bool = False
    ratio: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, text in (("attention", self.attention), ("mlp", self.mlp)):
            if text is not None:
                try:
                    parse_layers(text)
                except ValueError as error:
                    raise ValueError(f"drafter {NAME!r}: {name}={text}: {error}") from error
                if self.skip is not None:
                    raise ValueError(f"drafter {NAME!r}: {name}={text} beside skip={self.skip}: give one of the two")
        for name, value in (("ratio", self.ratio), ("seed", self.seed)):
            if value is not None and not self.on_the_fly:
                raise ValueError(f"drafter {NAME!r}: {name}={value} is of on_the_fly=true: give that too, or neither")
        if self.skip is not None and not self._file.is_file():
            raise ValueError(
                f"drafter {NAME!r}: {self._file}: no such file; give one that `paceline skip-search` wrote, its "
                "directory, or attention=LAYERS,mlp=LAYERS"
            )
        self._search()

    def drafter(self, target: Loaded) -> Drafter:
        """The drafter. Raises ValueError for layers that ``target`` lacks, for a target that transformers runs, and
        where no set was found for it.
        """
        sublayers = self._sublayers(target)
        sublayers.check(native_target(target).num_layers)
        return self.make(sublayers)

    def make(self, sublayers: SkippedSublayers) -> Drafter:
        """The drafter that skips ``sublayers``, at first."""
        return DRAFTERS.find(NAME)(sublayers=sublayers, on_the_fly=self._search())

    @property
    def _file(self) -> Path:
        given = Path(self.skip or "")
        return given / FILE_NAME if given.is_dir() else given

    def _search(self) -> OnTheFly | None:
        if not self.on_the_fly:
            return None
        seed = self.seed or 0
        return OnTheFly(seed=seed) if self.ratio is None else OnTheFly(seed=seed, ratio=self.ratio)

    def _sublayers(self, target: Loaded) -> SkippedSublayers:
        native_target(target)
        if self.attention is not None or self.mlp is not None:
            attention, mlp = (
                frozenset[int]() if text is None else parse_layers(text) for text in (self.attention, self.mlp)
            )
            return SkippedSublayers(attention=attention, mlp=mlp)
        if self.skip is not None:
            return read_set(self._file, target).sublayers
        if self.on_the_fly:
            return SkippedSublayers()
        path = set_path(target)
        if not path.is_file():
            raise ValueError(
                f"drafter {NAME!r} needs a set of sub-layers, and none was searched for {target.name}: run `paceline "
                f"skip-search {target.name}`, or give {NAME}:attention=LAYERS,mlp=LAYERS or {NAME}:on_the_fly=true"
            )
        return read_set(path, target).sublayers
