"""What a pipeline is and keeps: declaration, folders, offsets, fingerprints."""
