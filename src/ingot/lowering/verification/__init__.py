"""Rules of the loop IR's verifier: bodies, accesses and steps, each as a function that says what is wrong."""
