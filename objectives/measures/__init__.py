"""What a student costs, the budget that it meets, what it is worth."""
