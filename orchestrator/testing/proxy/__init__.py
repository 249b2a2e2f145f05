"""The double's front: server, routing, recording, faults."""
