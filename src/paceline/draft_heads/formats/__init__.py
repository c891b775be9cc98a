"""Formats of draft heads that other projects save."""

from paceline.core.registry import Registry

FORMATS = Registry("format", {}, group="paceline.head_formats", base="paceline.draft_heads.formats.base:Format")
