"""The front door: each verb as a function, with everything as plain arguments."""
