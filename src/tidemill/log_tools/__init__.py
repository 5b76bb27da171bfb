"""Tools over the files of a log: dump, verification, and a dry run of recovery. No broker imports them."""
