"""How much may be asked of others: requests per host, tokens per minute, budgets; counted in Valkey."""
