"""K students as one program: weights, masks, losses, stages; what the teacher says."""
