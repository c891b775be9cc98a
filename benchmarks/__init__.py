"""Studies: questions that are measured once and answered under docs/experiments. No other part imports them."""
