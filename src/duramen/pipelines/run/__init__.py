"""Steps as running queries: planning, running, reprocessing, reading what they made."""
