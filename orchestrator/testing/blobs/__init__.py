"""The blob service: containers are folders, so that a running job sees in its mounts what clients write, and back."""
