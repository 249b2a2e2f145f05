"""What is known of a run, whoever runs it."""
