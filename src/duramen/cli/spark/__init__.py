"""`duramen spark`: run, watch and rebuild pipelines."""
