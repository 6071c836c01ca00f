"""What programs get of Penstock: behind `import penstock`, and shared with the command line where both ask for the same."""
