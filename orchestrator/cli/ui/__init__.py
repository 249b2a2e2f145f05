"""Parts that commands share: declarations, completion, output on the terminal."""
