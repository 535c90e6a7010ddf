"""What the user named, the teacher, and the splits that judge: hidden from every search."""
