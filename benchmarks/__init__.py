"""Studies: what is measured once and answered in the documentation. No part of the package imports them."""
