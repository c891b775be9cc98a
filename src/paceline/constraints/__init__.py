"""What tokens may come, as the host says: the lane on which it is asked, grammars, and processors of others."""
