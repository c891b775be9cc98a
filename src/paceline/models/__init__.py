"""Language models behind one protocol: a token tree in, logits and tapped hidden states out."""

from paceline.models.native.torchao import has_torchao, load_torchao

if has_torchao():
    load_torchao()  # before transformers imports it with its warnings
