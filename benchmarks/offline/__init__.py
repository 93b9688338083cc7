"""One model folder without a server, by this project and by other runtimes, in turns."""
