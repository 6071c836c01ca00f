"""How servers are entered: who may see a password, and where passwords come from."""
