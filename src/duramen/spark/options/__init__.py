"""Options of source and sink, and the offsets by partition that they may name."""
