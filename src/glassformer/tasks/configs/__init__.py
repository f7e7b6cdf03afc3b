"""The config and the data of each task, one short file per kind of data. No torch here: `--help` reads them."""
