"""Fuzzing of the readers of users' files: the table of readers, a fuzzer for each, and a replay of kept inputs."""
