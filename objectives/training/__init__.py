"""Training of K students as one program: weights, masks, losses, stages; the teacher's states."""
