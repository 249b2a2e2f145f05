"""What the verbs share: arguments, completion, drawing on the terminal."""
