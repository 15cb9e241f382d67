"""Step 4's answer: what is known already of a product backlog item."""
