"""The command line: declarations of commands, and their handlers, which are loaded when a command runs."""
