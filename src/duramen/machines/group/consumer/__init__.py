"""Groups of the consumer protocol (KIP-848): members say what they read, the coordinator assigns, all state in records.

The group epoch rises whenever the subscriptions or their topics change; a target assignment is computed for it; each
member goes there by itself, first giving up what it must, then taking what the others have given up.
"""
