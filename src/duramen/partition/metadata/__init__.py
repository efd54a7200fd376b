"""The metadata log on this node: the controller that decides, and the publisher that makes partitions so."""
