"""What a GPU does: plain decoding beside its bandwidth, drafted decoding beside transformers."""
