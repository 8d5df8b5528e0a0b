"""What HTTP programs of other projects ask of the broker's front, one module per program."""
