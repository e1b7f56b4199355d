"""Settings: schema, composition, and what is wrong with a configuration."""
