"""Other frameworks, taught to use the operators."""
