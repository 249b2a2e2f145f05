"""The command line: parses, calls the client, renders. One module for each group of verbs, loaded when it is used."""
