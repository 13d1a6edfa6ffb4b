"""What an encoder is worth: each evaluation turns a subject into names and numbers."""
