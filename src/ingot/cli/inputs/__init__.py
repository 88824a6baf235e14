"""What a command is given: kinds of files, paths that are checked before the work, data, completion in a shell."""
