"""Any REST service, as the configuration describes it, and presets for known ones."""
