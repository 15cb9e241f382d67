"""One machine: embedded servers, and the processes of `larder up`."""
