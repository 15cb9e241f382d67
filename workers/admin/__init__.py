"""What an operator asks for: status, explain, clear, reindex, doctor, evaluation."""
