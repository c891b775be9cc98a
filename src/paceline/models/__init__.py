"""Language models behind one protocol: a token tree in, logits and tapped hidden states out."""
