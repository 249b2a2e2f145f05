"""What a job on Azure takes with it: code, data, environments."""
