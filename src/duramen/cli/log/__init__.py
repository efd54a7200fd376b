"""`duramen log`: look into a data directory, check and repair it while no node uses it."""
