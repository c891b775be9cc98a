"""Language models behind one small protocol: tokens of a tree in, logits and tapped hidden states out."""
