"""Language models behind one small protocol: tokens of a tree in, logits and tapped hidden states out."""

from paceline.models.native.torchao import has_torchao, load_torchao

if has_torchao():
    load_torchao()  # before transformers does, and lets it talk
