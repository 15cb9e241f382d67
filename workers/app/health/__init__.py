"""Problems of an installation: one judgement for status, health, metrics, alerts and the console."""
