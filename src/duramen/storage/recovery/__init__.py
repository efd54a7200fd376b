"""Start of a log directory: the recovery plan from the journal, its replay, and the opening of every log."""
