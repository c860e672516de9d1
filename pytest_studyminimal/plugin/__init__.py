"""The only room that imports pytest. `options` is always loaded; the rest only under `--study`."""
