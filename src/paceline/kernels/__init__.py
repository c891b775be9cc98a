"""Native code: what computes faster than torch calls, per kind of processor."""
