"""Agent loops and workflows: veRL's, Trinity's and those of users."""
