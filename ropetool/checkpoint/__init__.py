"""Files only: shards, folders and the rope block of config.json."""
