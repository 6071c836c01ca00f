"""What the generated pages and the dashboard are made of; ``reference_doc.py`` writes them."""
