"""What every room may use: errors, paths of the home folder, text and HTML for humans, redaction."""
