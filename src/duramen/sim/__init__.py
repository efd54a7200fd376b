"""The simulator: the production server under virtual time, with a disk, a network and threads that follow one seed."""
