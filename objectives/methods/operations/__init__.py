"""Methods that search for operations: cells chosen by a super-net."""
