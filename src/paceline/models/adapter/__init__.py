"""Adapter that runs other transformers decoders by their own code over a slot cache.

It takes transformers' modelling code, which takes seconds to import: models/lazy_adapter does so when a model needs it.
"""

from paceline.models.native.torchao import load_quantizers

load_quantizers()  # before transformers imports torchao with its warnings
