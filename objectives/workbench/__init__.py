"""The inputs of a user, the teacher, and the splits that judge: hidden from every search."""
