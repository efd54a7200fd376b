"""Reading: which offsets a query takes, how they are split into tasks, and what a task reads."""
