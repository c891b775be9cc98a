from paceline.drafters.layer_skip import LayerSkipDrafter
from paceline.models.sublayers import SkippedSublayers
def tiny(target):
    return LayerSkipDrafter(skipped=SkippedSublayers(attention=frozenset({1})))
