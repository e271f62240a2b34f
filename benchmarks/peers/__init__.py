"""What the serving benchmark needs of other engines: environments, model files, and one child process each."""
