"""What a configuration names, put together; where training starts."""
