"""Small native models whose weights lie as a loaded checkpoint's do."""

from copy import deepcopy
from functools import cache

from tests.models.layouts import pair


@cache
def native(layout, dtype):
    """The native model of a layout; transformers holds some matrices of GPT-2 the other way round."""
    lm = deepcopy(pair(layout, dtype)[1])
    for parameter in lm.parameters():
        parameter.data = parameter.data.contiguous()
    return lm
