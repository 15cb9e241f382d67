"""Files below a folder: found by globs, read as documents."""
