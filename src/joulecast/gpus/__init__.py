"""GPUs: frozen descriptions and the catalogue, one TOML a GPU with the source of each number."""
