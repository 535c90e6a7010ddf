"""What is done to the weights after the units are chosen: least-squares reconstruction."""
