"""Python text -> one function body with no calls left but operations -> a program of the body."""
