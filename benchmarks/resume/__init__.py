"""Does it pay to verify from the hidden states that an early exit has left, over exit depth, batch and context?"""
